//! `tail`: what a plugin decides and says on one member, as it happens.

use kuorum_proto::kuorum::v1::{PluginTailLine, PluginTailRequest, PluginTailWhat};
use serde_json::json;

use super::arguments::Output;
use super::connection::Connection;
use super::output::{self, key_text, mode_text};

/// Goes on until the member stops or whoever reads it does.
pub(super) async fn tail(connection: &mut Connection, output: Output, name: &str) -> anyhow::Result<bool> {
    let request = PluginTailRequest { name: name.to_owned() };
    let mut lines = connection.answer(async |client| client.tail(request).await).await?;
    while let Some(line) = lines.message().await.map_err(|status| connection.told(&status))? {
        let is_written = match output {
            Output::Json => output::try_line(&as_json(&line).to_string()),
            Output::Table => output::try_line(&as_text(&line)),
        };
        if !is_written {
            break;
        }
    }
    Ok(true)
}

fn what_text(line: &PluginTailLine) -> &'static str {
    match line.what() {
        PluginTailWhat::Verdict => "verdict",
        PluginTailWhat::Plan => "plan",
        PluginTailWhat::Log => "log",
        PluginTailWhat::Failure => "failure",
    }
}

fn as_json(line: &PluginTailLine) -> serde_json::Value {
    json!({
        "unix_ms": line.unix_ms,
        "plugin": line.plugin,
        "revision": line.revision,
        "mode": mode_text(line.mode()),
        "kind": line.kind,
        "what": what_text(line),
        "operation": line.operation,
        "key": key_text(&line.key),
        "more_operations": line.more_operations,
        "verdict": line.verdict,
        "code": line.code,
        "level": line.level,
        "text": line.text,
        "elapsed_us": line.elapsed_us,
        "fuel": line.fuel,
        "left_out": line.left_out,
    })
}

/// Time of day (UTC), revision and mode, then what happened: only what there is to say.
fn as_text(line: &PluginTailLine) -> String {
    let mut words = vec![time_of_day(line.unix_ms), format!("{}/{}", line.plugin, line.revision)];
    words.push(mode_text(line.mode()).to_owned());
    let mut word = |text: &str| {
        if !text.is_empty() {
            words.push(text.to_owned());
        }
    };
    match line.what() {
        PluginTailWhat::Verdict => {}
        PluginTailWhat::Plan | PluginTailWhat::Failure => word(what_text(line)),
        PluginTailWhat::Log => word(&line.level),
    }
    word(&line.operation);
    word(&key_text(&line.key));
    if line.more_operations > 0 {
        word(&format!("(+{})", line.more_operations));
    }
    word(&line.verdict);
    word(&line.code);
    if line.elapsed_us > 0 {
        word(&format!("{} us", line.elapsed_us));
    }
    // A line is a line.
    word(&output::fit(&line.text));
    if line.left_out > 0 {
        word(&format!("[{} lines before this one were left out]", line.left_out));
    }
    words.join(" ")
}

fn time_of_day(unix_ms: i64) -> String {
    let ms = unix_ms.rem_euclid(86_400_000);
    let (seconds, ms) = (ms / 1_000, ms % 1_000);
    format!("{:02}:{:02}:{:02}.{ms:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use kuorum_proto::kuorum::v1::PluginMode;

    use super::*;

    #[test]
    fn a_line_says_what_there_is_to_say() {
        let mut line = PluginTailLine {
            unix_ms: 1_796_229_561_407,
            plugin: "guard".to_owned(),
            revision: 2,
            mode: PluginMode::Enforce.into(),
            kind: "admission".to_owned(),
            operation: "put".to_owned(),
            key: b"/a/b"[..].into(),
            more_operations: 2,
            verdict: "deny".to_owned(),
            code: "invalid-argument".to_owned(),
            text: "too long".to_owned(),
            elapsed_us: 12,
            left_out: 7,
            ..PluginTailLine::default()
        };
        let expected = "16:39:21.407 guard/2 enforce put /a/b (+2) deny invalid-argument 12 us too long \
                        [7 lines before this one were left out]";
        assert_eq!(as_text(&line), expected);
        assert_eq!(as_json(&line)["what"], "verdict");
        line = PluginTailLine { unix_ms: 5, plugin: "guard".to_owned(), revision: 2, text: "a\nb".to_owned(), ..line };
        line.set_what(PluginTailWhat::Log);
        (line.level, line.left_out) = ("warn".to_owned(), 0);
        line.operation.clear();
        line.verdict.clear();
        assert!(as_text(&line).starts_with("00:00:00.005 guard/2 enforce warn"), "{}", as_text(&line));
        assert!(as_text(&line).ends_with("a b"));
    }
}

//! Words and byte strings of the request language.

use bytes::Bytes;

/// The range end that means "no upper bound".
const FROM_KEY: &[u8] = b"\0";
/// A repetition longer than this is a slip of the pen.
const REPEAT_MAX: usize = 64 << 20;

/// Splits a line at blanks; brackets and semicolons are words of their own.
pub fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for letter in line.chars() {
        match letter {
            ' ' | '\t' | '\n' | '[' | ']' | ';' => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                if matches!(letter, '[' | ']' | ';') {
                    words.push(letter.to_string());
                }
            }
            _ if letter.is_ascii() => word.push(letter),
            _ => return Err(format!("{line}: write {letter} as bytes")),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// `a`, `a..b` or `a..`: a key and a range end.
pub(super) fn keys_of(word: &str) -> Result<(Bytes, Bytes), String> {
    match word.split_once("..") {
        None => Ok((bytes_of(word)?, Bytes::new())),
        Some((key, "")) => Ok((bytes_of(key)?, Bytes::from_static(FROM_KEY))),
        Some((key, end)) => Ok((bytes_of(key)?, bytes_of(end)?)),
    }
}

/// A byte string: letters, `\xNN`, `""` for none, `text*N` for a repetition.
pub fn bytes_of(word: &str) -> Result<Bytes, String> {
    if word == "\"\"" {
        return Ok(Bytes::new());
    }
    if let Some((text, count)) = word.split_once('*') {
        let count: usize = count.parse().map_err(|_| format!("{word} repeats how often?"))?;
        let text = unescaped(text)?;
        if text.len() * count > REPEAT_MAX {
            return Err(format!("{word} is longer than {REPEAT_MAX} bytes"));
        }
        return Ok(Bytes::from(text.repeat(count)));
    }
    unescaped(word).map(Bytes::from)
}

fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let digits = tail
            .get(..3)
            .filter(|digits| digits[0] == b'x')
            .and_then(|digits| std::str::from_utf8(&digits[1..]).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or(format!("{text}: a backslash starts \\xNN"))?;
        bytes.push(digits);
        rest = &tail[3..];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_and_semicolons_stand_alone() {
        assert_eq!(
            words("txn then [put a 1; range b]").unwrap(),
            ["txn", "then", "[", "put", "a", "1", ";", "range", "b", "]"]
        );
    }

    #[test]
    fn bytes_are_written_as_letters_escapes_and_repetitions() {
        let read = |word: &str| bytes_of(word).unwrap().to_vec();
        assert_eq!(read("ab"), b"ab");
        assert_eq!(read("\"\""), b"");
        assert_eq!(read("a\\x00\\xff"), b"a\x00\xff");
        assert_eq!(read("ab*3"), b"ababab");
        assert!(bytes_of("\\x0").is_err());
    }

    #[test]
    fn keys_are_single_ranged_or_open() {
        let read = |word: &str| {
            let (key, end) = keys_of(word).unwrap();
            (key.to_vec(), end.to_vec())
        };
        assert_eq!(read("a"), (b"a".to_vec(), b"".to_vec()));
        assert_eq!(read("a..c"), (b"a".to_vec(), b"c".to_vec()));
        assert_eq!(read("a.."), (b"a".to_vec(), b"\0".to_vec()));
    }
}

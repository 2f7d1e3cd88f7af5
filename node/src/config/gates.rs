//! `--feature-gates`: etcd's switches for alpha and beta behaviour.
//!
//! The names and defaults are etcd 3.7's. A gate whose subject this release does not have keeps its value and
//! changes nothing.

use super::number;

/// Which optional behaviours are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one switch per gate, named as the operator names them")]
pub struct FeatureGates {
    pub compact_hash_check: bool,
    pub fast_lease_keep_alive: bool,
    pub initial_corrupt_check: bool,
    pub lease_checkpoint: bool,
    pub lease_checkpoint_persist: bool,
    pub priority_request: bool,
    pub set_member_local_addr: bool,
    pub stop_grpc_service_on_defrag: bool,
    pub txn_mode_write_with_shared_buffer: bool,
}

impl Default for FeatureGates {
    fn default() -> FeatureGates {
        let mut gates = FeatureGates {
            compact_hash_check: false,
            fast_lease_keep_alive: false,
            initial_corrupt_check: false,
            lease_checkpoint: false,
            lease_checkpoint_persist: false,
            priority_request: false,
            set_member_local_addr: false,
            stop_grpc_service_on_defrag: false,
            txn_mode_write_with_shared_buffer: false,
        };
        for gate in &GATES {
            *(gate.field)(&mut gates) = gate.stage == Stage::Beta;
        }
        gates
    }
}

/// Beta gates are on by default, alpha gates off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
}

struct Gate {
    name: &'static str,
    stage: Stage,
    field: fn(&mut FeatureGates) -> &mut bool,
}

const GATES: [Gate; 9] = [
    Gate { name: "CompactHashCheck", stage: Stage::Alpha, field: |g| &mut g.compact_hash_check },
    Gate { name: "FastLeaseKeepAlive", stage: Stage::Beta, field: |g| &mut g.fast_lease_keep_alive },
    Gate { name: "InitialCorruptCheck", stage: Stage::Alpha, field: |g| &mut g.initial_corrupt_check },
    Gate { name: "LeaseCheckpoint", stage: Stage::Alpha, field: |g| &mut g.lease_checkpoint },
    Gate { name: "LeaseCheckpointPersist", stage: Stage::Alpha, field: |g| &mut g.lease_checkpoint_persist },
    Gate { name: "PriorityRequest", stage: Stage::Alpha, field: |g| &mut g.priority_request },
    Gate { name: "SetMemberLocalAddr", stage: Stage::Alpha, field: |g| &mut g.set_member_local_addr },
    Gate { name: "StopGRPCServiceOnDefrag", stage: Stage::Alpha, field: |g| &mut g.stop_grpc_service_on_defrag },
    Gate {
        name: "TxnModeWriteWithSharedBuffer",
        stage: Stage::Beta,
        field: |g| &mut g.txn_mode_write_with_shared_buffer,
    },
];

impl FeatureGates {
    /// Reads `Name=true,Name=false`. A name of its own wins over `AllAlpha` and `AllBeta`, wherever it stands.
    pub(super) fn parse(text: &str) -> Result<FeatureGates, String> {
        let mut gates = FeatureGates::default();
        let mut named = Vec::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(format!("missing bool value for {}", pair.trim()));
            };
            let (name, value) = (name.trim(), value.trim());
            let Some(on) = number::boolean(value) else {
                return Err(format!(
                    "invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
                ));
            };
            match name {
                "AllAlpha" => gates.set_all(Stage::Alpha, on),
                "AllBeta" => gates.set_all(Stage::Beta, on),
                _ => match GATES.iter().find(|gate| gate.name == name) {
                    Some(gate) => named.push((gate, on)),
                    None => return Err(format!("unrecognized feature gate: {name}")),
                },
            }
        }
        for (gate, on) in named {
            *(gate.field)(&mut gates) = on;
        }
        Ok(gates)
    }

    fn set_all(&mut self, stage: Stage, on: bool) {
        for gate in GATES.iter().filter(|gate| gate.stage == stage) {
            *(gate.field)(self) = on;
        }
    }
}

/// One line a gate for the usage text.
pub(super) fn gate_lines() -> Vec<String> {
    let own = GATES.iter().map(|gate| match gate.stage {
        Stage::Alpha => format!("{}=true|false (ALPHA - default=false)", gate.name),
        Stage::Beta => format!("{}=true|false (BETA - default=true)", gate.name),
    });
    let all = ["AllAlpha=true|false (ALPHA - default=false)", "AllBeta=true|false (BETA - default=false)"];
    all.into_iter().map(str::to_owned).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_gate_wins_over_all() {
        let gates = FeatureGates::parse("CompactHashCheck=false,AllAlpha=true,AllBeta=false").expect("gates");
        assert!(!gates.compact_hash_check);
        assert!(gates.initial_corrupt_check);
        assert!(!gates.fast_lease_keep_alive);
    }

    /// The texts are etcd 3.7.3's, seen after `invalid value "..." for flag -feature-gates: `.
    #[test]
    fn wrong_gates_are_refused_in_etcds_words() {
        let words = |text| FeatureGates::parse(text).expect_err("refused");
        assert_eq!(words("Foo=true"), "unrecognized feature gate: Foo");
        assert_eq!(words("CompactHashCheck"), "missing bool value for CompactHashCheck");
        assert_eq!(
            words("CompactHashCheck=x"),
            "invalid value of CompactHashCheck=x, err: strconv.ParseBool: parsing \"x\": invalid syntax"
        );
    }
}

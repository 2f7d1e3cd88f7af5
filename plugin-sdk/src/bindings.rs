//! What wit-bindgen makes of `wit/policy.wit`: a world for the calls of the host, and one for each interface that a plugin
//! exports.
//!
//! Each world carries its part of the component's type in a custom section of the module. The section of an exporting
//! world is written where its macro is used, so a plugin's module describes the kinds it has and no others; the encoder
//! leaves out what is described as imported and never called.

/// Every call of the host. Parameters are borrowed: a host call copies nothing that the plugin keeps.
pub mod host {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package kuorum:sdk-host;
            world host {
                import kuorum:policy/log@0.1.0;
                import kuorum:policy/metrics@0.1.0;
                import kuorum:policy/kv-read@0.1.0;
                import kuorum:policy/request-values@0.1.0;
                import kuorum:policy/outbound-http@0.1.0;
                import kuorum:policy/files@0.1.0;
            }
        ",
        additional_derives: [PartialEq, Eq],
        ownership: Borrowing { duplicate_if_necessary: false },
        generate_all,
    });
}

pub mod lifecycle {
    wit_bindgen::generate!({
        path: "wit",
        inline: "package kuorum:sdk-lifecycle; world lifecycle { export kuorum:policy/lifecycle@0.1.0; }",
        additional_derives: [PartialEq, Eq],
        generate_unused_types: true,
        generate_all,
        pub_export_macro: true,
    });
}

/// The bindings of one kind, whose contexts and failures are those of the lifecycle.
macro_rules! kind {
    ($module:ident, $world:literal) => {
        pub mod $module {
            wit_bindgen::generate!({
                path: "wit",
                inline: $world,
                with: { "kuorum:policy/types@0.1.0": crate::bindings::lifecycle::kuorum::policy::types },
                additional_derives: [PartialEq, Eq],
                generate_all,
                pub_export_macro: true,
            });
        }
    };
}

kind!(compaction, "package kuorum:sdk-compaction; world compaction { export kuorum:policy/compaction@0.1.0; }");
kind!(quota, "package kuorum:sdk-quota; world quota { export kuorum:policy/quota@0.1.0; }");
kind!(admission, "package kuorum:sdk-admission; world admission { export kuorum:policy/admission@0.1.0; }");
kind!(
    backup_schedule,
    "package kuorum:sdk-backup-schedule; world backup-schedule { export kuorum:policy/backup-schedule@0.1.0; }"
);
kind!(
    backup_target,
    "package kuorum:sdk-backup-target; world backup-target { export kuorum:policy/backup-target@0.1.0; }"
);

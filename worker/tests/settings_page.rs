//! docs/settings.md lists every setting of the worker.
#![expect(clippy::expect_used, reason = "a test reports by panicking")]

#[path = "../../shared/tests/settings_page/mod.rs"]
mod page;

use ringtune_worker::settings::{CHANGE_BY_RELOAD, Settings};

const SOURCES: [&str; 6] = [
    "worker/src/settings/mod.rs",
    "worker/src/settings/sections.rs",
    "worker/src/access/settings.rs",
    "shared/src/daemon/settings.rs",
    "shared/src/daemon/logging/mod.rs",
    "shared/src/daemon/traces.rs",
];

#[test]
fn the_page_lists_every_setting_of_the_worker() {
    page::check_table("ringtune-worker", &SOURCES, &CHANGE_BY_RELOAD, Settings::validate);
}

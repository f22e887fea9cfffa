//! docs/settings.md lists every setting of the coordinator.
#![expect(clippy::expect_used, reason = "a test reports by panicking")]

#[path = "../../shared/tests/settings_page/mod.rs"]
mod page;

use ringtune_coordinator::settings::{CHANGE_BY_RELOAD, Settings};

const SOURCES: [&str; 4] = [
    "coordinator/src/settings.rs",
    "shared/src/daemon/settings.rs",
    "shared/src/daemon/logging/mod.rs",
    "shared/src/daemon/traces.rs",
];

#[test]
fn the_page_lists_every_setting_of_the_coordinator() {
    page::check_table("ringtune-coordinator", &SOURCES, &CHANGE_BY_RELOAD, Settings::validate);
}

//! The machine, as the cloud that lent it calls it.

use super::checks::{Check, Verdict};
use crate::{
    cloud::{Cloud, Machine, Trouble},
    settings::CloudSettings,
};

/// What the cloud says of the machine; nothing, where the settings name no cloud.
pub(super) async fn machine(settings: &CloudSettings) -> Option<Result<Machine, Trouble>> {
    match Cloud::of(settings.provider, settings.endpoint()) {
        Ok(cloud) => Some(cloud?.machine().await),
        Err(trouble) => Some(Err(trouble)),
    }
}

/// Whether it is a machine for a worker.
pub(super) fn judge(settings: &CloudSettings, machine: &Result<Machine, Trouble>) -> Check {
    const NAME: &str = "cloud";
    let machine = match machine {
        Ok(machine) => machine,
        Err(trouble) => {
            return Check::new(NAME, trouble.to_string()).unless(
                false,
                Verdict::Warn,
                "the worker is not told when the machine is taken away: check cloud.provider and cloud.endpoint, and whether \
                 a container reaches the metadata service (on EC2 the hop limit has to be 2)",
            );
        }
    };
    let zone = if machine.zone.is_empty() { String::new() } else { format!(" in zone {}", machine.zone) };
    Check::new(NAME, format!("{:?}: {}{zone}", settings.provider, machine.kind)).unless(
        !machine.is_burstable,
        Verdict::Warn,
        "its processors are lent for a while, and then held back: take another type, with AMX on AWS m7i, m8i or r7iz, on \
         Azure Dsv6 or Esv6",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::CloudProvider;

    #[test]
    fn the_type_is_named_and_one_that_is_held_back_is_warned_of() {
        let settings = CloudSettings { provider: CloudProvider::Aws, ..CloudSettings::default() };
        let of = |kind: &str, is_burstable| {
            let machine = Machine { kind: kind.to_owned(), zone: "eu-west-1a".to_owned(), is_burstable };
            judge(&settings, &Ok(machine))
        };
        let good = of("m7i.4xlarge", false);
        assert_eq!(
            (good.verdict, good.found.as_str()),
            (Verdict::Good, "Aws: m7i.4xlarge in zone eu-west-1a")
        );
        assert_eq!(of("t3.large", true).verdict, Verdict::Warn);
        let trouble =
            Trouble::Silent { url: "http://169.254.169.254/x".to_owned(), problem: "timed out".to_owned() };
        assert_eq!(judge(&settings, &Err(trouble)).verdict, Verdict::Warn);
    }
}

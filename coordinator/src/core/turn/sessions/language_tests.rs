use ringtune_shared::ids::JobId;
use ringtune_shared::version::{Agreement, Dialect, ProtocolRange};

use crate::core::testing::{hello, inversion, new_job};
use crate::core::{Action, Cluster, Down, Hello, Input, Options, Recovered, Refusal, SessionId, Time};

fn dialect(min: u32, max: u32, features: &[&str]) -> Dialect {
    Dialect {
        version: "0.0.0".to_owned(),
        protocols: ProtocolRange { min, max },
        features: features.iter().map(|feature| (*feature).to_owned()).collect(),
    }
}

fn say_hello(cluster: &mut Cluster, number: u64, dialect: Dialect) -> Result<Vec<Action>, Refusal> {
    let hello = Hello { dialect, ..hello(number) };
    let effects = cluster.apply(Input::Hello { session: SessionId(number), hello }, Time(0))?;
    Ok(effects.actions)
}

/// A coordinator of a release to come: protocols 2 to 4, and features.
fn cluster() -> Cluster {
    let options = Options { dialect: dialect(2, 4, &["b", "a", "z"]), ..Options::default() };
    Cluster::recover(options, Recovered::default(), Time(0))
}

#[test]
fn a_welcome_says_what_both_sides_speak() {
    let actions = say_hello(&mut cluster(), 1, dialect(1, 3, &["z", "y", "a"])).unwrap();
    let agreed = Agreement { protocol: 3, features: vec!["a".to_owned(), "z".to_owned()] };
    assert_eq!(actions, [Action::Send(SessionId(1), Down::Welcome(agreed))]);
}

#[test]
fn a_worker_that_speaks_nothing_in_common_is_not_known_afterwards() {
    let mut cluster = cluster();
    for (min, max) in [(0, 0), (1, 1), (5, 7)] {
        assert!(
            matches!(say_hello(&mut cluster, 1, dialect(min, max, &[])), Err(Refusal::Misfit(_))),
            "{min} to {max}"
        );
    }
    assert_eq!(cluster.workers().count(), 0);
}

#[test]
fn a_ring_speaks_the_newest_protocol_that_all_its_members_do() {
    let mut cluster = cluster();
    for (number, newest) in [(1, 4), (2, 3), (3, 9)] {
        say_hello(&mut cluster, number, dialect(2, newest, &[])).unwrap();
    }
    let new = new_job(JobId::new(), inversion("[cluster]\nworld_size = 3\n"));
    cluster.apply(Input::CreateJob(new), Time(1)).unwrap();
    let effects = cluster.place(Time(1));
    let protocols: Vec<u32> = effects
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Send(_, Down::Assignment(given)) => Some(given.protocol),
            _ => None,
        })
        .collect();
    assert_eq!(protocols, [3, 3, 3]);
}

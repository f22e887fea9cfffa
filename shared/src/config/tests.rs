use std::io::Write;
use std::net::SocketAddr;

use serde::Deserialize;

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Settings {
    grpc: Grpc,
    session: Session,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Grpc {
    listen: SocketAddr,
    advertise: Option<String>,
    peers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Session {
    heartbeat_seconds: f64,
    retries: u8,
    insecure: bool,
}

impl std::default::Default for Settings {
    fn default() -> Self {
        Self {
            grpc: Grpc { listen: ([127, 0, 0, 1], 7070).into(), advertise: None, peers: Vec::new() },
            session: Session { heartbeat_seconds: 2.0, retries: 3, insecure: false },
        }
    }
}

fn file(text: &str) -> (tempfile::NamedTempFile, Sources) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let sources = Sources { file: Some(file.path().to_owned()), ..Sources::default() };
    (file, sources)
}

fn environment(name: &str, value: &str) -> Sources {
    Sources { environment: vec![(name.to_owned(), value.to_owned())], ..Sources::default() }
}

fn problems(sources: Sources) -> Vec<SettingProblem> {
    match load::<Settings>(sources) {
        Err(ConfigError::Invalid(problems)) => problems,
        other => panic!("expected invalid settings, got {other:?}"),
    }
}

#[test]
fn nothing_given_gives_the_defaults() {
    assert_eq!(load::<Settings>(Sources::default()).unwrap(), Settings::default());
}

#[test]
fn later_sources_win_setting_by_setting() {
    let (_file, mut sources) = file(
        "[grpc]\nlisten = \"0.0.0.0:1\"\nadvertise = \"host-a\"\npeers = [\"a\", \"b\"]\n\
         [session]\nheartbeat_seconds = 5\nretries = 7\n",
    );
    sources.environment = vec![
        ("RINGTUNE__GRPC__LISTEN".into(), "0.0.0.0:2".into()),
        ("RINGTUNE__SESSION__RETRIES".into(), "8".into()),
        ("RINGTUNE__SESSION__INSECURE".into(), "true".into()),
        ("RINGTUNE_COORDINATOR".into(), "http://elsewhere".into()),
        ("PATH".into(), "/bin".into()),
    ];
    sources.overrides = vec![("session.retries", "9".into()), ("grpc.advertise", "007".into())];
    let settings = load::<Settings>(sources).unwrap();
    assert_eq!(settings.grpc.listen, ([0, 0, 0, 0], 2).into());
    assert_eq!(settings.grpc.advertise.as_deref(), Some("007"));
    assert_eq!(settings.grpc.peers, ["a", "b"]);
    assert_eq!(settings.session, Session { heartbeat_seconds: 5.0, retries: 9, insecure: true });
}

#[test]
fn unknown_settings_are_named_with_their_place_and_the_likely_word() {
    let (kept, mut sources) = file("[grpc]\n\nlistn = \"0.0.0.0:1\"\n[sesion]\nretries = 1\n");
    sources.environment = vec![("RINGTUNE__SESSION__RETRYS".into(), "1".into())];
    let problems = problems(sources);
    let found: Vec<(&str, &str)> = problems.iter().map(|p| (p.place.as_str(), p.setting.as_str())).collect();
    let path = kept.path().display();
    assert_eq!(
        found,
        [
            (format!("{path}, line 3").as_str(), "grpc.listn"),
            (format!("{path}, line 4").as_str(), "sesion"),
            ("environment variable RINGTUNE__SESSION__RETRYS", "session.retrys"),
        ]
    );
    assert!(problems[0].problem.contains("grpc.listen"), "{}", problems[0].problem);
    assert!(problems[1].problem.contains("\"session\""), "{}", problems[1].problem);
    assert!(problems[2].problem.contains("session.retries"), "{}", problems[2].problem);
}

#[test]
fn wrong_types_are_refused_wherever_they_come_from() {
    let (_file, sources) =
        file("[session]\nretries = 1.5\ninsecure = 1\nheartbeat_seconds = \"2\"\n[grpc]\nlisten = 7");
    assert_eq!(problems(sources).len(), 4);
    let (_file, sources) = file("grpc = 7\n[session]\nretries = { a = 1 }\nheartbeat_seconds = nan\n");
    assert_eq!(problems(sources).len(), 3);
    for (name, value) in [
        ("RINGTUNE__SESSION__RETRIES", "three"),
        ("RINGTUNE__SESSION__RETRIES", "1.5"),
        ("RINGTUNE__SESSION__RETRIES", ""),
        ("RINGTUNE__SESSION__INSECURE", "yes"),
        ("RINGTUNE__SESSION__HEARTBEAT_SECONDS", "inf"),
        ("RINGTUNE__GRPC", "x"),
        ("RINGTUNE__", "x"),
    ] {
        let problems = problems(environment(name, value));
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].place, format!("environment variable {name}"));
    }
}

#[test]
fn the_settings_type_has_the_last_word() {
    for (name, value) in [
        ("RINGTUNE__SESSION__RETRIES", "256"),
        ("RINGTUNE__SESSION__RETRIES", "-1"),
        ("RINGTUNE__GRPC__LISTEN", "nowhere"),
    ] {
        let problems = problems(environment(name, value));
        assert_eq!(problems[0].place, format!("environment variable {name}"));
        let (given, like) = (format!("got {value}"), format!("got {value:?}"));
        let problem = &problems[0].problem;
        assert!(problem.contains(&given) || problem.contains(&like), "{problem}");
        assert!(problem.contains("allowed: such as"), "{problem}");
    }
}

#[test]
fn what_a_type_refuses_is_said_in_words_of_people() {
    let said = |name, value| problems(environment(name, value)).remove(0).problem;
    assert_eq!(said("RINGTUNE__SESSION__RETRIES", "-1"), "got -1, which is negative; allowed: such as 3");
    assert_eq!(
        said("RINGTUNE__GRPC__LISTEN", "HOST:7071"),
        "got \"HOST:7071\"; allowed: such as \"127.0.0.1:7070\", an IP address and a port; no host names"
    );
}

#[test]
fn a_broken_file_is_named_with_its_line() {
    let (kept, sources) = file("[grpc]\nlisten = \n");
    let Err(ConfigError::Syntax { place, .. }) = load::<Settings>(sources) else { panic!("accepted") };
    assert_eq!(place, format!("{}, line 2", kept.path().display()));
    let missing = Sources { file: Some("/nonexistent/ringtune.toml".into()), ..Sources::default() };
    assert!(matches!(load::<Settings>(missing), Err(ConfigError::Unreadable { .. })));
}

#[test]
fn lists_come_from_the_environment_with_commas() {
    let settings = load::<Settings>(environment("RINGTUNE__GRPC__PEERS", "a, b,")).unwrap();
    assert_eq!(settings.grpc.peers, ["a", "b"]);
}

#[test]
fn all_problems_are_said_at_once_and_the_caller_has_a_word() {
    let (_file, mut sources) = file("[session]\nretries = 300\nheartbeat_seconds = 0.5\n[grpc]\nlistn = 1\n");
    sources.overrides = vec![("session.insecure", "perhaps".to_owned())];
    let odd = |settings: &Settings| {
        vec![(
            "session.heartbeat_seconds".to_owned(),
            format!("{} is odd", settings.session.heartbeat_seconds),
        )]
    };
    let Err(ConfigError::Invalid(problems)) = load_checked(sources, odd) else { panic!("accepted") };
    let found: Vec<&str> = problems.iter().map(|problem| problem.setting.as_str()).collect();
    let expected = ["session.retries", "grpc.listn", "session.insecure", "session.heartbeat_seconds"];
    assert_eq!(found, expected);
    assert!(problems[3].place.ends_with("line 3") && problems[3].problem == "0.5 is odd", "{problems:?}");
}

#[test]
fn places_are_known_and_summed_up() {
    let (kept, mut sources) = file("[session]\nretries = 1\nheartbeat_seconds = 3\n");
    sources.environment = vec![("RINGTUNE__SESSION__RETRIES".into(), "8".into())];
    let loaded = load_checked::<Settings>(sources, |_| Vec::new()).unwrap();
    assert_eq!(loaded.places["session.retries"], "environment variable RINGTUNE__SESSION__RETRIES");
    let path = kept.path().display();
    let expected = format!(
        "2 settings are given (1 from {path}, 1 from the environment); all others have their defaults"
    );
    assert_eq!(loaded.summary(), expected);
    let none = load_checked::<Settings>(Sources::default(), |_| Vec::new()).unwrap();
    assert_eq!(none.summary(), "no setting is given: all have their defaults");
}

use proptest::prelude::*;

use super::*;

fn cluster() -> Cluster {
    Cluster::from(Uuid::from_u128(0x0193_f2a4))
}

fn join() -> JoinToken {
    JoinToken::new(Role::Worker, [7; 32], cluster()).unwrap()
}

#[test]
fn a_line_without_spaces_holds_the_whole_token() {
    for role in Role::ALL {
        let token = JoinToken::new(role, [9; 32], cluster()).unwrap();
        let line = token.reveal();
        assert!(line.starts_with("rtj1.") && line.len() < 140, "{line}");
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        assert!(line.chars().all(plain), "{line}");
        let read: JoinToken = format!(" {line}\n").parse().unwrap();
        assert_eq!((read.role, read.authority, read.cluster, read.id), (role, [9; 32], cluster(), token.id));
        assert_eq!(read.secret.reveal(), token.secret.reveal());
    }
    let token = AccessToken::new().unwrap();
    let read: AccessToken = token.reveal().parse().unwrap();
    assert!(token.reveal().starts_with("rta1.") && read.id == token.id);
    assert!(read.secret.matches(&token.secret.hash()));
}

#[test]
fn lines_of_this_release_can_be_read_by_the_next() {
    let token = JoinToken {
        role: Role::Submitter,
        authority: [0xab; 32],
        cluster: cluster(),
        id: TokenId([1; 8]),
        secret: Secret([2; 32]),
    };
    let bytes = line::read::<JOIN_BYTES>(
        &line::Kind { wanted: "join", prefix: JOIN, other: ACCESS },
        &token.reveal(),
    );
    let expected = [&[2][..], &[0xab; 32], &[1; 8], &[2; 32], cluster().uuid().as_bytes()].concat();
    assert_eq!(bytes.unwrap(), expected);
}

#[test]
fn whatever_is_wrong_is_told_apart() {
    let line = join().reveal();
    let access = AccessToken::new().unwrap().reveal();
    let read = |text: &str| text.parse::<JoinToken>().unwrap_err();
    assert!(matches!(read("  "), TokenError::Empty { .. }));
    assert!(matches!(read(&access), TokenError::OtherKind { wanted: "join", .. }));
    assert!(matches!(line.parse::<AccessToken>(), Err(TokenError::OtherKind { wanted: "access", .. })));
    for text in ["hello", "rtj.abc", "rtjx.abc", "eyJh.eyJz.sig", &line[1..]] {
        assert!(matches!(read(text), TokenError::NoToken { .. }), "{text}");
    }
    assert_eq!(read(&line.replace("rtj1.", "rtj2.")), TokenError::Version { given: 2 });
    for cut in [&line[..line.len() - 1], &line[..40], "rtj1."] {
        let TokenError::Length { given, length, .. } = read(cut) else { panic!("{cut}") };
        assert_eq!((given, length), (cut.len(), line.len()));
    }
    assert!(matches!(read(&format!("{line}A")), TokenError::Length { .. }));
    assert_eq!(read(&format!("{}!{}", &line[..20], &line[21..])), TokenError::Mistyped);
    let later = line::write(JOIN, &[99; JOIN_BYTES]);
    assert_eq!(read(&later), TokenError::UnknownRole);
}

#[test]
fn no_text_shows_a_secret() {
    let token = join();
    let line = token.reveal();
    let shown = format!("{token:?} {:?} {}", token.secret, token.id);
    assert!(!shown.contains(&hex::encode(token.secret.reveal())) && shown.contains("Secret(…)"));
    assert!(!shown.contains(&line[60..80]), "{shown}");
    for wrong in [&line[..line.len() - 3], &line.replace("rtj1", "rtj7"), &line[2..]] {
        let error = wrong.parse::<JoinToken>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&line[60..70]), "{error}");
    }
}

#[test]
fn only_its_own_hash_fits_a_secret() {
    let (one, two) = (join().secret, join().secret);
    assert!(one.matches(&one.hash()) && !one.matches(&two.hash()));
    assert_eq!(one.hash().0, <[u8; 32]>::from(Sha256::digest(one.reveal())));
    assert!(Secret::from_bytes(*one.reveal()).matches(&SecretHash::from(one.hash().0)));
}

#[test]
fn ids_are_read_back() {
    let id = join().id;
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(TokenId::from(id.bytes()), id);
    for wrong in ["", "12", "zz00000000000000", "112233445566778899"] {
        assert_eq!(wrong.parse::<TokenId>(), Err(TokenIdError), "{wrong}");
    }
}

proptest! {
    #[test]
    fn one_wrong_letter_is_seen(at in 5_usize..129, letter in "[A-Za-z0-9_-]") {
        let line = join().reveal();
        prop_assume!(at < line.len() && line[at..=at] != letter);
        let mistyped = format!("{}{letter}{}", &line[..at], &line[at + 1..]);
        prop_assert_eq!(mistyped.parse::<JoinToken>().unwrap_err(), TokenError::Mistyped);
    }

    #[test]
    fn no_text_breaks_the_readers(text in "(rt[ja][0-9]{1,12}\\.)?[\\PC]{0,200}") {
        prop_assert!(text.parse::<JoinToken>().is_err() && text.parse::<AccessToken>().is_err());
    }
}

#[test]
fn words_have_their_articles() {
    let text = "x".parse::<AccessToken>().unwrap_err().to_string();
    assert!(text.contains("an access token begins with"), "{text}");
    let text = "x".parse::<JoinToken>().unwrap_err().to_string();
    assert!(text.contains("a join token begins with"), "{text}");
}

//! Each kind of secret is planted in all sorts of surroundings, and must be in none of what comes out.

use super::*;

const JOIN: &str = "rtj1.AbC-_0123456789";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMIIEsecretsecret+/=\nAAAA\n-----END PRIVATE KEY-----";

/// Each kind of secret, with what of it must not be left.
fn planted() -> Vec<(String, &'static str)> {
    vec![
        (JOIN.to_owned(), "AbC-_0123456789"),
        ("rta1.zzzzYYYY".to_owned(), "zzzzYYYY"),
        (KEY.to_owned(), "MIIEsecretsecret"),
        (KEY.replace('\n', "\\n"), "MIIEsecretsecret"),
        (KEY.replace("PRIVATE", "EC PRIVATE"), "MIIEsecretsecret"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEsecretsecret".to_owned(), "MIIEsecretsecret"),
        ("https://ada:lovelace@host/x".to_owned(), "lovelace"),
        ("https://lovelace@host".to_owned(), "lovelace"),
        ("https://ada:it's-lovelace@host".to_owned(), "lovelace"),
        ("https://ada:a/love?lace@host/x".to_owned(), "love?lace"),
        ("s3://[::1]:80 https://ada:a@lovelace@host".to_owned(), "lovelace"),
        ("Authorization: Bearer abcdefgh12345".to_owned(), "abcdefgh12345"),
        ("authorization: Digest username=x, response=lovelace".to_owned(), "lovelace"),
        ("'Basic bG92ZWxhY2U6eA=='".to_owned(), "bG92ZWxhY2U6"),
        ("Cookie: session=lovelace; other=lovelace2".to_owned(), "lovelace"),
        ("AKIAIOSFODNN7EXAMPLE".to_owned(), "IOSFODNN7"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG".to_owned(), "wJalrXUtnFEMI"),
        ("hf_abcdefghijklmnopqrstuvwxyz".to_owned(), "abcdefghijklmnop"),
        ("HF_TOKEN=lovelace".to_owned(), "lovelace"),
        ("password = \"love\\\"lace\"".to_owned(), "lace"),
        ("password = '''\nlovelace\n'''".to_owned(), "lovelace"),
        ("{\"api_key\": \"lovelace\"}".to_owned(), "lovelace"),
        ("\"{\\\"apiKey\\\":\\\"lovelace\\\"}\"".to_owned(), "lovelace"),
        ("tool --password lovelace -v".to_owned(), "lovelace"),
        ("GET /x?X-Amz-Signature=lovelace&y=1".to_owned(), "lovelace"),
        ("GET /x?sv=1&sig=lovelace&y=1".to_owned(), "lovelace"),
        ("password: `love lace`".to_owned(), "lace"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.lovelace".to_owned(), "lovelace"),
        ("xrta1.zzzzYYYY_rtj1.AAAABBBB".to_owned(), "zzzzYYYY"),
        ("_rtj1.zzzzYYYY".to_owned(), "zzzzYYYY"),
        ("password= HF_TOKEN=\"lovelace\"".to_owned(), "lovelace"),
        (
            r"token: 
Cookie: a=b; c=lovelace"
                .to_owned(),
            "lovelace",
        ),
        ("token: \"access_key\": \"lovelace\"".to_owned(), "lovelace"),
        (r"a line\nsig=lovelace".to_owned(), "lovelace"),
        (r"a\nhf_abcdefghijklmnopqrstuvwxyz".to_owned(), "abcdefghijklmnop"),
        (r"a\u0026hf_abcdefghijklmnopqrstuvwxyz".to_owned(), "abcdefghijklmnop"),
        ("password = \"\"\"\nlove\"lace\n\"\"\"".to_owned(), "lace"),
        ("password = 'lovelace\nthe log goes on".to_owned(), "lovelace"),
        ("Set-Cookie: __Host-ringtune=lovelace; HttpOnly".to_owned(), "lovelace"),
        ("BEARER lovelace1".to_owned(), "lovelace1"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIEsecretsecret\\nAAAA".to_owned(), "MIIEsecretsecret"),
        (format!("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n{KEY}"), "MIIEsecretsecret"),
        (format!("{KEY} {}", KEY.replace("MIIE", "MIIF")), "MIIFsecretsecret"),
    ]
}

#[test]
fn no_kind_of_secret_is_left_wherever_it_stands() {
    for (secret, hidden) in planted() {
        for around in ["{}", "log line: {}", "a={}, b=1", "\"{}\"", "[\"{}\"]\n", "ä{}ä", "(see {})", "%20{}"]
        {
            let text = around.replace("{}", &secret);
            let clean = scrub(&text);
            assert!(!clean.contains(hidden), "{text:?} became {clean:?}");
            assert!(clean.contains(REMOVED), "{text:?} became {clean:?}");
            assert_eq!(scrub(&clean), clean, "twice is as once");
        }
    }
}

#[test]
fn what_is_around_a_secret_stays() {
    for (text, clean) in [
        (format!("a {JOIN} b"), "a [removed] b"),
        (format!("a\n{KEY}\nb"), "a\n[removed]\nb"),
        ("at https://ada:x@host:1/p?q".to_owned(), "at https://[removed]@host:1/p?q"),
        ("HF_TOKEN=abc next".to_owned(), "HF_TOKEN=[removed] next"),
        ("{\"password\":\"x\",\"b\":2}".to_owned(), "{\"password\":\"[removed]\",\"b\":2}"),
        ("X-Amz-Signature=abc&y=1".to_owned(), "X-Amz-Signature=[removed]&y=1"),
        (r#"token = "a\"b" # c"#.to_owned(), r#"token = "[removed]" # c"#),
        (r#"{\"token\":\"a\",\"b\":1}"#.to_owned(), r#"{\"token\":\"[removed]\",\"b\":1}"#),
        (r#"token = "a\\" b"#.to_owned(), r#"token = "[removed]" b"#),
        ("token = \"a\": b".to_owned(), "token = \"[removed]\": b"),
        (
            "token=a, b; 'token=a' b; {token=a} token=a; b".to_owned(),
            "token=[removed], b; 'token=[removed]' b; {token=[removed]} token=[removed]; b",
        ),
        ("token = 'a\nthe log goes on".to_owned(), "token = '[removed]\nthe log goes on"),
        ("http://a:b http://x@y c@d".to_owned(), "http://a:b http://[removed]@y c@d"),
        ("token = '''a'b''' c".to_owned(), "token = '''[removed]''' c"),
        ("Cookie: a=b; c=d\nHost: e".to_owned(), "Cookie: [removed]\nHost: e"),
        (r#"{"cookie":"a=b; c=d","e":1}"#.to_owned(), r#"{"cookie":"[removed]","e":1}"#),
        ("Authorization: Digest a=b\"".to_owned(), "Authorization: [removed]\""),
        ("--token abc --steps 3".to_owned(), "--token [removed] --steps 3"),
        ("Bearer abcdefgh12 and more".to_owned(), "Bearer [removed] and more"),
        (
            "(token=abc) [token=abc] <token=abc>".to_owned(),
            "(token=[removed]) [token=[removed]] <token=[removed]>",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n; done".to_owned(), "[removed]; done"),
    ] {
        assert_eq!(scrub(&text), clean);
    }
}

#[test]
fn what_is_no_secret_is_left_alone() {
    for text in [
        "placeholder_token = \"<dicoo>\"",
        "\"initializer_token\": \"toy\", \"vectors_per_token\": 4",
        "next_page_token: abc",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "http://127.0.0.1:7070/path@2 and s3://bucket/key",
        "key = \"/etc/ringtune/key.pem\"",
        "join_token_file = \"/etc/ringtune/token\"",
        "a basic test of the bearer of news",
        "prompt: a photo of a cat's toy, 50 % off — \"naïve\"",
        "ghp_ hf_x AKIA sk- task-force eyJust",
        "the token was used up",
        "https://[::1]:7070/a@b https://host:7070/a@b https://host/a@b http://h:1?a@b http://h:1#a@b",
        "bos_token: x, eos-token: x, unkToken: x, mask_token: x, pad_token = x, words_per_token: 3",
        "design=1 signal: 2 sigma=0.5 tokens: 77 tokenizer = \"x\" secretary: x cookies: 3",
        "password, and then -- token",
        "a risk-averse desk-abcdefghijklmnopqrstuvwxyz and xhf_abcdefghijklmnopqrstuvwxyz",
        "basic test1 bearer of2",
        "psig=1, my_hf_abcdefghijklmnopqrstuvwxyz, http://h a@b",
        "rtj1. rta1. and eyJabc.eyJabc",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "",
    ] {
        assert_eq!(scrub(text), text);
    }
}

#[test]
fn a_beginning_of_a_secret_is_none_alone_or_within_a_word() {
    let beginnings =
        ["hf_", "api_org_", "AKIA", "ASIA", "AIza", "ya29.", "ghp_", "gho_", "ghs_", "glpat-", "eyJ"];
    for beginning in beginnings.into_iter().chain(["sk-", "github_pat_"]) {
        for text in [format!("{beginning} {beginning}abc"), format!("x{beginning}{}", "a".repeat(40))] {
            assert_eq!(scrub(&text), text);
        }
    }
}

/// Every word that says that a secret follows, as different programs write it.
const SECRET_NAMES: [&str; 24] = [
    "password",
    "db_passwd",
    "SSH_PASSPHRASE",
    "client-secret",
    "AWS_SECRET_KEY",
    "aws_access_key",
    "aws_access_key_id",
    "secretAccessKey",
    "api-key",
    "apiKey",
    "X-Api-Key",
    "private_key",
    "AccountKey",
    "SharedKey",
    "storage_key",
    "Authorization",
    "Proxy-Authorization",
    "cookie",
    "X-Amz-Credential",
    "X-Amz-Signature",
    "HUGGING_FACE_HUB_TOKEN",
    "aws_session_token",
    "sasToken",
    "sig",
];

#[test]
fn each_name_of_a_secret_hides_its_value_however_it_is_written() {
    for name in SECRET_NAMES {
        for (before, after) in [
            ("NAME=", ""),
            ("export NAME=", ""),
            ("NAME: ", ""),
            ("NAME\t=\t", ""),
            ("NAME = \"", "\"\nb = 1"),
            ("{\"NAME\": \"", "\", \"b\": 1}"),
            (r#"{\"NAME\":\""#, r#"\"}"#),
            ("{'NAME' : '", "'}"),
            ("tool --NAME ", ""),
            ("tool --NAME=", ""),
        ] {
            let (before, after) = (before.replace("NAME", name), after.replace("NAME", name));
            let text = format!("{before}lovelace{after}");
            assert_eq!(scrub(&text), format!("{before}{REMOVED}{after}"), "{text:?}");
        }
    }
}

/// A random text can be made again from its seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap_or_default()
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn letters(&mut self, alphabet: &str, count: usize) -> String {
        let letters: Vec<char> = alphabet.chars().collect();
        (0..count).map(|_| letters[self.below(letters.len())]).collect()
    }
}

const WORD: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// A secret of some shape: how it is written, and what of it must not be seen.
fn secret(random: &mut Random) -> (String, String) {
    let length = 40 + random.below(60);
    let word = random.letters(WORD, length);
    let safe = random.letters(&format!("{WORD}-_"), length);
    let cloud = random.letters(&format!("{WORD}+/"), 40);
    let short = 12 + random.below(20);
    let password = random.letters(&format!("{WORD}!$&'()*+,;=-._~%:"), short);
    let key_id = word[..16].to_uppercase();
    match random.below(19) {
        0 => (format!("rtj1.{safe}"), safe),
        1 => (format!("rta1.{safe}"), safe),
        2 => (format!("__Host-ringtune=rta1.{safe}; HttpOnly; Secure"), safe),
        3 => (format!("hf_{word}"), word),
        4 => (format!("api_org_{word}"), word),
        5 => (format!("{}{key_id}", random.one(&["AKIA", "ASIA"])), key_id),
        6 => (format!("AWS_SECRET_ACCESS_KEY={cloud}"), cloud),
        7 => (format!("{}_{word}", random.one(&["ghp", "gho", "ghs", "github_pat"])), word),
        8 => (format!("{}{word}", random.one(&["glpat-", "sk-", "ya29.", "AIza"])), word),
        9 => (format!("eyJ{word}.eyJ{word}.{safe}"), safe),
        10 => {
            let label =
                random.one(&["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"]);
            let end = random.one(&["\n", "\\n", "\r\n"]);
            (format!("-----BEGIN {label}-----{end}{cloud}{end}{word}=={end}-----END {label}-----"), cloud)
        }
        11 => (format!("-----BEGIN PRIVATE KEY-----\n{word}\n{cloud}"), cloud),
        12 => {
            let scheme = random.one(&["https", "s3", "http"]);
            (format!("{scheme}://{word}:{password}@host.example:8080/x"), password)
        }
        13 => (format!("https://{word}@host.example/x"), word),
        14 => (format!("{} {cloud}=", random.one(&["Bearer", "bearer", "Basic", "BASIC"])), cloud),
        15 => (format!("Cookie: a={safe}; b={word}"), word),
        16 => (format!("Authorization: Digest username=ada, response={word}"), word),
        17 => (format!("{}=\"{password}\"", random.one(&["password", "api_key", "HF_TOKEN"])), password),
        _ => (format!("\"{}\": \"{password}\"", random.one(&["secret", "access_key", "token"])), password),
    }
}

/// What stands around it in logs, settings, prompts and answers.
fn surroundings(random: &mut Random) -> String {
    const PARTS: [&str; 18] = [
        "a photo of a cat's toy, 50 % off",
        "2026-11-23T10:54:33.1Z  INFO ringtune_worker::journal: epoch 2, rank 0 of 1",
        "[log]\nfilter = \"info\"\n",
        "# a comment",
        "ä naïve “quote” — \u{1f980}",
        "{\"level\":\"INFO\",\"message\":\"listening\",\"job\":null}",
        "http://127.0.0.1:7070/path@2",
        "token: ",
        "password=",
        "Bearer ",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN ",
        "://",
        "[removed]",
        "=\"'`\\",
        "--token",
        "@",
        "",
    ];
    let mut text = String::new();
    for _ in 0..random.below(4) {
        text += random.one(&PARTS);
        text += random.one(&["\n", " ", "\t", "\r\n"]);
    }
    text
}

/// As a text of JSON has it.
fn in_json(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    text.replace('\r', "\\r").replace('\t', "\\t")
}

#[test]
fn no_secret_comes_out_whatever_is_around_it() {
    for seed in 0..10_000 {
        let random = &mut Random(seed);
        let (secret, hidden) = secret(random);
        let plain = format!("{}{secret}\n{}", surroundings(random), surroundings(random));
        let text = match random.below(3) {
            0 => format!("{{\"timestamp\":1,\"message\":\"{}\",\"target\":\"a\"}}", in_json(&plain)),
            1 => format!("prompt = \"{}\"\n", in_json(&plain)),
            _ => plain,
        };
        let clean = scrub(&text);
        assert!(clean.contains(REMOVED), "seed {seed}: {text:?} became {clean:?}");
        // Nor is a part of it left that is of use to anybody.
        let parts = hidden.as_bytes().windows(10).filter_map(|part| std::str::from_utf8(part).ok());
        let left = parts.into_iter().find(|part| clean.contains(part));
        assert!(left.is_none(), "seed {seed}: {left:?} of {text:?} is in {clean:?}");
        assert_eq!(scrub(&clean), clean, "seed {seed}: twice is not as once, of {text:?}");
    }
}

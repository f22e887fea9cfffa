//! Takes secrets out of texts that others are to read. It rather takes too much than too little.

/// What stands where a secret was.
pub const REMOVED: &str = "[removed]";

/// Secrets that begin in a way of their own: the beginning, how many letters follow at least, and whether it may stand in
/// the middle of a word.
const BEGINNINGS: [(&str, usize, bool); 15] = [
    ("rtj1.", 1, true),
    ("rta1.", 1, true),
    ("hf_", 16, false),
    ("api_org_", 16, false),
    ("AKIA", 12, false),
    ("ASIA", 12, false),
    ("AIza", 30, false),
    ("ya29.", 16, false),
    ("ghp_", 16, false),
    ("gho_", 16, false),
    ("ghs_", 16, false),
    ("github_pat_", 16, false),
    ("glpat-", 16, false),
    ("sk-", 20, false),
    ("eyJ", 30, false),
];

/// Names whose values are secrets, by how they end, in small letters and without what joins words.
const SECRET_ENDS: [&str; 18] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secretkey",
    "accesskey",
    "accesskeyid",
    "apikey",
    "privatekey",
    "accountkey",
    "sharedkey",
    "storagekey",
    "authorization",
    "cookie",
    "credential",
    "amzsignature",
    "token",
    "sastoken",
];

/// Names that end like those, and are of models and pages.
const PLAIN: [&str; 10] = [
    "placeholdertoken",
    "initializertoken",
    "vectorspertoken",
    "pagetoken",
    "padtoken",
    "bostoken",
    "eostoken",
    "unktoken",
    "masktoken",
    "pertoken",
];

/// The text without tokens, private keys, user names and passwords of URLs, headers that let their sender in, and keys of
/// clouds and hubs.
pub fn scrub(text: &str) -> String {
    named_values(&schemes(&user_infos(&beginnings(&private_keys(text)))))
}

/// From `-----BEGIN … PRIVATE KEY-----` to its end, or as far as it goes.
fn private_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BEGIN) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let after = from.get(BEGIN.len()..).unwrap_or_default();
        let Some((label, body)) =
            after.split_once("-----").filter(|(label, _)| label.ends_with("PRIVATE KEY"))
        else {
            out.push_str(BEGIN);
            rest = after;
            continue;
        };
        out.push_str(REMOVED);
        let end = format!("-----END {label}-----");
        rest = match body.split_once(end.as_str()) {
            Some((_, after)) => after,
            None => body.trim_start_matches(|letter: char| {
                letter.is_ascii_alphanumeric() || letter.is_whitespace() || "+/=\\:-,".contains(letter)
            }),
        };
    }
    out + rest
}

fn is_token_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "_-.~+/=%".contains(letter)
}

/// How many bytes of the text's beginning are such letters.
fn run(text: &str, is_one: impl Fn(char) -> bool) -> usize {
    text.find(|letter| !is_one(letter)).unwrap_or(text.len())
}

fn beginnings(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let mut before: Option<char> = None;
    while let Some(letter) = rest.chars().next() {
        let is_start = !before.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        let found = BEGINNINGS.iter().find_map(|(beginning, least, anywhere)| {
            let after = rest.strip_prefix(beginning).filter(|_| is_start || *anywhere)?;
            let length = run(after, is_token_letter);
            (length >= *least).then_some(beginning.len() + length)
        });
        let (kept, length) = match found {
            Some(length) => (REMOVED, length),
            None => (rest.get(..letter.len_utf8()).unwrap_or_default(), letter.len_utf8()),
        };
        out.push_str(kept);
        before = Some(letter);
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

/// `scheme://user:password@host`.
fn user_infos(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let end = run(after, |letter| !letter.is_whitespace() && !"/?#\"'<>`\\".contains(letter));
        let authority = after.get(..end).unwrap_or_default();
        rest = match authority.rfind('@') {
            Some(at) => {
                out.push_str(REMOVED);
                after.get(at..).unwrap_or_default()
            }
            None => after,
        };
    }
    out + rest
}

/// `Bearer …` and `Basic …`, wherever they stand.
fn schemes(text: &str) -> String {
    let mut out = text.to_owned();
    for (scheme, least) in [("bearer ", 8), ("basic ", 12)] {
        let (text, mut begin) = (std::mem::take(&mut out), 0);
        // Of the same length: only ASCII changes.
        let small = text.to_ascii_lowercase();
        while let Some(at) = small.get(begin..).and_then(|rest| rest.find(scheme)) {
            let value = begin + at + scheme.len();
            let after = text.get(value..).unwrap_or_default();
            let length = run(after, is_token_letter);
            out.push_str(text.get(begin..value).unwrap_or_default());
            if length >= least {
                out.push_str(REMOVED);
                begin = value + length;
            } else {
                begin = value;
            }
        }
        out.push_str(text.get(begin..).unwrap_or_default());
    }
    out
}

/// `password = "…"`, `HF_TOKEN=…`, `"apiKey": "…"`, `--password …`, `Authorization: …`.
fn named_values(text: &str) -> String {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while !rest.is_empty() {
        let name_length = run(rest, is_name);
        let Some(name) = rest.get(..name_length).filter(|name| !name.is_empty()) else {
            let other = run(rest, |letter| !is_name(letter));
            out.push_str(rest.get(..other).unwrap_or_default());
            rest = rest.get(other..).unwrap_or_default();
            continue;
        };
        out.push_str(name);
        rest = rest.get(name_length..).unwrap_or_default();
        if let Some((joint, value)) = secret_value(name, rest) {
            out.push_str(rest.get(..joint).unwrap_or_default());
            out.push_str(REMOVED);
            rest = rest.get(joint + value..).unwrap_or_default();
        }
    }
    out
}

fn is_secret(name: &str) -> bool {
    let plain: String =
        name.chars().filter(|letter| !"_-".contains(*letter)).collect::<String>().to_ascii_lowercase();
    plain == "sig"
        || (SECRET_ENDS.iter().any(|end| plain.ends_with(end))
            && !PLAIN.iter().any(|name| plain.ends_with(name)))
}

/// What is between a secret's name and its value, and the value, in bytes. None: it is no secret, or has no value.
fn secret_value(name: &str, after: &str) -> Option<(usize, usize)> {
    if !is_secret(name) {
        return None;
    }
    // What closes a quoted name, as it is or within a text of JSON.
    let quote = run(after, |letter| letter == '\\' || letter == '"' || letter == '\'');
    let blanks = |from: usize| {
        from + run(after.get(from..).unwrap_or_default(), |letter| letter == ' ' || letter == '\t')
    };
    let sign = blanks(quote);
    let at = match after.get(sign..)?.chars().next()? {
        '=' | ':' => blanks(sign + 1),
        _ if name.starts_with("--") && sign > 0 => sign,
        _ => return None,
    };
    let value = after.get(at..)?;
    let is_header = ["authorization", "cookie"].iter().any(|end| name.to_ascii_lowercase().ends_with(end));
    let (joint, length) = value_of(value, is_header);
    // A bare value ends before a bracket, and so does what stands for one.
    let is_gone = REMOVED.trim_end_matches(']');
    (length > 0 && value.get(joint..joint + length)?.trim_end_matches(']') != is_gone)
        .then_some((at + joint, length))
}

/// Where a value begins behind its quotes, and how long it is.
fn value_of(text: &str, is_header: bool) -> (usize, usize) {
    let escaped = run(text, |letter| letter == '\\');
    let Some(quote) =
        text.get(escaped..).and_then(|rest| rest.chars().next()).filter(|q| "\"'`".contains(*q))
    else {
        let ends = |letter: char| match is_header {
            true => "\r\n\"".contains(letter),
            false => letter.is_whitespace() || ",;&\"'}])>".contains(letter),
        };
        return (0, run(text, |letter| !ends(letter)));
    };
    let triple: String = std::iter::repeat_n(quote, 3).collect();
    let inside = text.get(escaped..).unwrap_or_default();
    if let Some(body) = inside.strip_prefix(triple.as_str()) {
        return (escaped + 3, body.find(triple.as_str()).unwrap_or(body.len()));
    }
    let begin = escaped + 1;
    let body = text.get(begin..).unwrap_or_default();
    let mut skip = false;
    let end = body.find(|letter: char| {
        if std::mem::take(&mut skip) {
            return false;
        }
        // Where the quotes are escaped themselves, the next one closes.
        skip = letter == '\\' && escaped == 0;
        letter == quote || letter == '\n'
    });
    (begin, end.unwrap_or(body.len()))
}

#[cfg(test)]
mod tests {
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
        ]
    }

    #[test]
    fn no_kind_of_secret_is_left_wherever_it_stands() {
        for (secret, hidden) in planted() {
            for around in
                ["{}", "log line: {}", "a={}, b=1", "\"{}\"", "[\"{}\"]\n", "ä{}ä", "(see {})", "%20{}"]
            {
                let anywhere = secret.starts_with("rt") || secret.contains("://") || secret.contains("-----");
                if !anywhere && ["ä{}ä", "%20{}"].contains(&around) {
                    continue;
                }
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
            "",
        ] {
            assert_eq!(scrub(text), text);
        }
    }
}

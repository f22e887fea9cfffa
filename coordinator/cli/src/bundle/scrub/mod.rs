//! Takes secrets out of texts that others are to read. It rather takes too much than too little.

#[cfg(test)]
mod tests;

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
const SECRET_ENDS: [&str; 17] = [
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
];

/// Names that end like those, and are of models and pages.
const PLAIN: [&str; 9] = [
    "placeholdertoken",
    "initializertoken",
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
    while let Some(letter) = rest.chars().next() {
        let is_start = begins_word(text.get(..text.len() - rest.len()).unwrap_or_default());
        let found = BEGINNINGS.iter().find_map(|(beginning, least, anywhere)| {
            let after = rest.strip_prefix(beginning).filter(|_| *anywhere || is_start)?;
            let length = run(after, is_token_letter);
            (length >= *least).then_some(beginning.len() + length)
        });
        let (kept, length) = match found {
            Some(length) => (REMOVED, length),
            None => (rest.get(..letter.len_utf8()).unwrap_or_default(), letter.len_utf8()),
        };
        out.push_str(kept);
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

/// Whether a word begins behind this, which may end with a letter that stands for another one: `\n`, `\u0026`, `%20`.
fn begins_word(before: &str) -> bool {
    let is_joined = |letter: &u8| letter.is_ascii_alphanumeric() || *letter == b'_';
    match before.as_bytes() {
        [.., b'\\', letter] => b"nrtbf0".contains(letter) || !is_joined(letter),
        [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => true,
        [.., b'\\', b'u', _, _, _, _] => true,
        bytes => !bytes.last().is_some_and(is_joined),
    }
}

/// `scheme://user:password@host`. What is behind a colon there and is no port is a password, also where it has letters that
/// it may not have, such as a slash.
fn user_infos(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let end = run(after, |letter| !letter.is_whitespace() && !"\"<>`\\".contains(letter));
        let word = after.get(..end).unwrap_or_default();
        let authority = word.get(..run(word, |letter| !"/?#".contains(letter))).unwrap_or_default();
        let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let has_password =
            authority.split_once(':').is_some_and(|(host, port)| !host.starts_with('[') && !is_port(port));
        rest = match if has_password { word.rfind('@') } else { authority.rfind('@') } {
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
        // The first letter may stand for the end of a line.
        let is_escaped = text.get(..text.len() - rest.len()).is_some_and(|before| before.ends_with('\\'));
        let name = name.get(usize::from(is_escaped)..).unwrap_or_default();
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
    let found = value.get(joint..joint + length).filter(|found| !found.is_empty())?;
    // A bare value ends before a bracket, and so does what stands for one.
    let is_gone = found.trim_end_matches(']') == REMOVED.trim_end_matches(']');
    // What follows is the name of another one, which has a value of its own.
    let behind = value.get(joint + length..)?.trim_start_matches(['\\', '"', '\'', '`', ' ', '\t']);
    let is_name = match found.trim_end_matches('\\').strip_suffix([':', '=']) {
        Some(name) => is_secret(name),
        None => is_secret(found) && behind.starts_with([':', '=']),
    };
    (!is_gone && !is_name).then_some((at + joint, length))
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
        let length = run(text, |letter| !ends(letter));
        // The end of a line within a text of JSON.
        let escape = ["\\n", "\\r"].iter().filter_map(|escape| text.find(escape)).min();
        return (0, escape.map_or(length, |escape| escape.min(length)));
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
    let inside = body.get(..end.unwrap_or(body.len())).unwrap_or_default();
    // What escapes the closing quotes is none of the value.
    let behind = inside.bytes().rev().take_while(|byte| *byte == b'\\').count().min(escaped);
    (begin, inside.len() - behind)
}

//! The words of a Rust source, in their brackets, without comments: as much of the language as a search for paths needs.
//! (A crate that does it would be a dependency of macros on one side and of this test on the other: everything that has
//! macros would be compiled twice.)

use anyhow::{Result, bail};

/// One word, mark, literal, or what is between two brackets.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Word(String),
    Mark(char),
    Literal,
    Group { open: char, inside: Vec<Token> },
}

impl Token {
    /// A word's text; nothing of others.
    pub(super) fn word(&self) -> &str {
        match self {
            Self::Word(word) => word,
            _ => "",
        }
    }

    pub(super) fn is_mark(&self, wanted: char) -> bool {
        *self == Self::Mark(wanted)
    }
}

/// Reads a whole source.
///
/// # Errors
/// A bracket, comment or text that has no end, or an end that has no beginning.
pub(super) fn read(text: &str) -> Result<Vec<Token>> {
    let mut reader = Reader { rest: text };
    let tokens = reader.until(None)?;
    Ok(tokens)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn until(&mut self, end: Option<char>) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        loop {
            self.skip_blanks()?;
            let Some(next) = self.rest.chars().next() else {
                if let Some(end) = end {
                    bail!("a bracket has no {end:?}");
                }
                return Ok(tokens);
            };
            if matches!(next, ')' | ']' | '}') {
                self.take(1);
                if end == Some(next) {
                    return Ok(tokens);
                }
                bail!("{next:?} closes nothing");
            }
            tokens.push(self.token(next)?);
        }
    }

    fn token(&mut self, next: char) -> Result<Token> {
        let closing = match next {
            '(' => Some(')'),
            '[' => Some(']'),
            '{' => Some('}'),
            _ => None,
        };
        if let Some(end) = closing {
            self.take(1);
            return Ok(Token::Group { open: next, inside: self.until(Some(end))? });
        }
        if self.literal(next)? {
            return Ok(Token::Literal);
        }
        if next == '\'' {
            // A lifetime.
            self.take(1);
            self.word();
            return Ok(Token::Literal);
        }
        if is_of_word(next) {
            return Ok(Token::Word(self.word()));
        }
        self.take(next.len_utf8());
        Ok(Token::Mark(next))
    }

    fn word(&mut self) -> String {
        let length = self.rest.find(|letter| !is_of_word(letter)).unwrap_or(self.rest.len());
        let word = self.rest[..length].to_owned();
        self.take(length);
        word
    }

    /// Takes a text, a character or a number, if one comes.
    fn literal(&mut self, next: char) -> Result<bool> {
        let plain = self.rest.trim_start_matches(['b', 'c']);
        let prefix = self.rest.len() - plain.len();
        if prefix <= 1 {
            // 1. r"…", r#"…"#
            let hashes = plain.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
            if let Some(hashes) = hashes
                && plain[1 + hashes..].starts_with('"')
            {
                let end = format!("\"{}", "#".repeat(hashes));
                let begin = prefix + 2 + hashes;
                let Some(length) = self.rest[begin..].find(&end) else { bail!("a raw text has no end") };
                self.take(begin + length + end.len());
                return Ok(true);
            }
            // 2. "…"
            if plain.starts_with('"') {
                self.take(prefix + 1);
                return self.quoted('"').map(|()| true);
            }
            // 3. 'x', but not 'lifetime
            let mut letters = plain.chars();
            if letters.next() == Some('\'') {
                let (first, second) = (letters.next(), letters.next());
                if first == Some('\\') || second == Some('\'') {
                    self.take(prefix + 1);
                    return self.quoted('\'').map(|()| true);
                }
            }
        }
        if next.is_ascii_digit() {
            self.word();
            return Ok(true);
        }
        Ok(false)
    }

    fn quoted(&mut self, end: char) -> Result<()> {
        let mut escaped = false;
        for (at, letter) in self.rest.char_indices() {
            match letter {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                letter if letter == end => {
                    self.take(at + 1);
                    return Ok(());
                }
                _ => {}
            }
        }
        bail!("a text has no end")
    }

    fn skip_blanks(&mut self) -> Result<()> {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("//") {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.block_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    /// They may be within each other.
    fn block_comment(&mut self) -> Result<()> {
        let mut depth = 0;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
                if depth == 0 {
                    return Ok(());
                }
            } else if let Some(letter) = self.rest.chars().next() {
                self.take(letter.len_utf8());
            } else {
                bail!("a comment has no end");
            }
        }
    }

    fn take(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[test]
fn texts_comments_and_lifetimes_are_no_words() -> Result<()> {
    let source = "/* a /* b */ c */ fn f<'a>(x: &'a str) -> u8 { // d\n \"e { \\\" \" ; b'\\'' ; 'g' ; r#\"h \" }\"# ; 0x1f }";
    let found = format!("{:?}", read(source)?);
    for word in ["\"fn\"", "\"f\"", "\"x\"", "\"str\"", "\"u8\""] {
        assert!(found.contains(word), "{word} in {found}");
    }
    for word in ["a", "b", "c", "d", "e", "g", "h"] {
        assert!(!found.contains(&format!("Word({word:?})")), "{word} in {found}");
    }
    for broken in ["fn f(", "}", "\"a", "/* a", "r#\"a\""] {
        assert!(read(broken).is_err(), "{broken}");
    }
    Ok(())
}

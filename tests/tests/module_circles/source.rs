//! The modules of a crate, with the paths in each.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names from the crate's root to a module, or to an item.
pub(super) type Names = Vec<String>;

/// A `use` of one name; `name` is what it is called here, none for all names of a module.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) path: Names,
    pub(super) name: Option<String>,
}

/// A module without its tests.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// Path below the crate's `src`.
    pub(super) file: PathBuf,
    pub(super) imports: BTreeSet<Import>,
    /// Paths of two names or more in its code.
    pub(super) paths: BTreeSet<Names>,
    /// The names of its own items.
    pub(super) items: BTreeSet<String>,
    /// The modules within it: with their text, or in files of their own.
    inner: Vec<(String, Option<TokenStream>)>,
    is_test: bool,
}

/// All modules of a crate but those of tests, by their paths.
#[derive(Debug, Default)]
pub(super) struct ModuleTree(pub(super) BTreeMap<Names, Module>);

impl ModuleTree {
    /// Reads the modules from the crate's root file on. `read`: what is in a file, if it is there.
    pub(super) fn read(root: &Path, read: &impl Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_file(Names::new(), root, read)?;
        Ok(tree)
    }

    fn read_file(&mut self, path: Names, file: &Path, read: &impl Fn(&Path) -> Option<String>) -> Result<()> {
        let text = read(file).with_context(|| format!("{} is missing", file.display()))?;
        let tokens = text.parse().map_err(|error| anyhow!("{}: {error}", file.display()))?;
        self.read_module(path, tokens, file, read)
    }

    fn read_module(
        &mut self,
        path: Names,
        tokens: TokenStream,
        file: &Path,
        read: &impl Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        module.scan(tokens, true);
        if module.is_test {
            return Ok(());
        }
        for (name, text) in std::mem::take(&mut module.inner) {
            let inner = [path.as_slice(), &[name]].concat();
            let file_of = |end: &str| PathBuf::from(inner.join("/") + end);
            match text {
                Some(text) => self.read_module(inner, text, file, read)?,
                None => {
                    let beside = file_of(".rs");
                    let file = if read(&beside).is_some() { beside } else { file_of("/mod.rs") };
                    self.read_file(inner, &file, read)?;
                }
            }
        }
        self.0.insert(path, module);
        Ok(())
    }
}

/// Before the name of an item.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

impl Module {
    /// `outermost`: these are the module's own items, not what is within one.
    fn scan(&mut self, tokens: TokenStream, outermost: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at..];
            if let Some((attribute, length)) = attribute(rest) {
                at += length;
                if attribute == "cfg (test)" {
                    // `#!`: all that is around it.
                    self.is_test |= length == 3 && outermost;
                    at += if length == 3 { 0 } else { item_length(&tokens[at..]) };
                }
                continue;
            }
            at += match (token, word(token).as_str()) {
                (TokenTree::Group(group), _) => {
                    self.scan(group.stream(), false);
                    1
                }
                (TokenTree::Ident(_), "use") if !rest.get(1).is_some_and(|next| is_mark(next, '<')) => {
                    let length = rest.iter().take_while(|token| !is_mark(token, ';')).count();
                    self.import(&rest[1..length], &[]);
                    length
                }
                (TokenTree::Ident(_), "mod") if outermost => {
                    let name = rest.get(1).map(word).unwrap_or_default();
                    self.inner.push((name, rest.get(2).and_then(braces)));
                    3
                }
                (TokenTree::Ident(_), before) => {
                    let path = path(rest);
                    if outermost && ITEMS.contains(&before) {
                        self.items.extend(rest.get(1).map(word));
                    } else if outermost && before == "macro_rules" {
                        self.items.extend(rest.get(2).map(word));
                    }
                    let length = path.len() * 3 - 2;
                    let is_continued = at > 1 && tokens[at - 2..at].iter().all(|token| is_mark(token, ':'));
                    if path.len() > 1 && !is_continued {
                        self.paths.insert(path);
                    }
                    length
                }
                _ => 1,
            };
        }
    }

    /// Adds a branch of a `use` tree, behind `before`.
    fn import(&mut self, tokens: &[TokenTree], before: &[String]) {
        let mut path = before.to_vec();
        for (at, token) in tokens.iter().enumerate() {
            match (token, word(token).as_str()) {
                (TokenTree::Ident(_), "as") => {
                    let name = tokens.get(at + 1).map(word);
                    self.imports.insert(Import { path, name });
                    return;
                }
                // `a::{self}` is `a`.
                (TokenTree::Ident(_), "self") if !path.is_empty() => {}
                (TokenTree::Ident(_), name) => path.push(name.to_owned()),
                (token, _) if is_mark(token, '*') => {
                    self.imports.insert(Import { path, name: None });
                    return;
                }
                (TokenTree::Group(group), _) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    inside.split(|token| is_mark(token, ',')).for_each(|branch| self.import(branch, &path));
                    return;
                }
                _ => {}
            }
        }
        // Nothing stands behind a list's last comma.
        if !tokens.is_empty() {
            let name = path.last().cloned();
            self.imports.insert(Import { path, name });
        }
    }
}

/// A word's text; nothing of others.
fn word(token: &TokenTree) -> String {
    match token {
        TokenTree::Ident(word) => word.to_string(),
        _ => String::new(),
    }
}

fn is_mark(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(mark) if mark.as_char() == wanted)
}

fn braces(token: &TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    }
}

/// The names of `a::b::c`, from the first token on.
fn path(tokens: &[TokenTree]) -> Names {
    let mut names = vec![word(&tokens[0])];
    let mut rest = &tokens[1..];
    while let [first, second, name @ TokenTree::Ident(_), more @ ..] = rest
        && [first, second].iter().all(|token| is_mark(token, ':'))
    {
        names.push(word(name));
        rest = more;
    }
    names
}

/// An attribute's text, and how many tokens it has: three where it is one of all that is around it (`#!`).
fn attribute(tokens: &[TokenTree]) -> Option<(String, usize)> {
    let (TokenTree::Group(group), length) = (match tokens {
        [hash, bang, group, ..] if is_mark(hash, '#') && is_mark(bang, '!') => (group, 3),
        [hash, group, ..] if is_mark(hash, '#') => (group, 2),
        _ => return None,
    }) else {
        return None;
    };
    (group.delimiter() == Delimiter::Bracket).then(|| (group.stream().to_string(), length))
}

/// Number of the next item's tokens, its attributes included.
fn item_length(tokens: &[TokenTree]) -> usize {
    if let Some((_, length)) = attribute(tokens) {
        return length + item_length(&tokens[length..]);
    }
    let mut is_use = false;
    let is_end = |token: &TokenTree| {
        is_use |= word(token) == "use";
        is_mark(token, ';') || braces(token).is_some() && !is_use
    };
    tokens.iter().position(is_end).map_or(tokens.len(), |end| end + 1)
}

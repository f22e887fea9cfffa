//! The modules of a crate, and which paths each of them names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::tokens::{self, Token};

/// Where a module stands in its crate: the names from the root, which has none.
pub(super) type Place = Vec<String>;

/// A `use` of one name; `name` is what it is called here, none for all names of a module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    pub(super) name: Option<String>,
}

/// What one module says, without its tests.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// Below the crate's `src`.
    pub(super) file: PathBuf,
    pub(super) imports: BTreeSet<Import>,
    /// Paths of two names or more in its code.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// The names of its own items.
    pub(super) items: BTreeSet<String>,
    inner: Vec<Inner>,
    is_test: bool,
}

/// A module within another one: with its text, or in a file of its own.
#[derive(Debug)]
struct Inner {
    name: String,
    text: Option<Vec<Token>>,
}

/// All modules of a crate but those of tests.
#[derive(Debug)]
pub(super) struct ModuleTree {
    pub(super) modules: BTreeMap<Place, Module>,
}

impl ModuleTree {
    /// Reads the modules from the crate's root file on. `read`: what is in a file, if it is there.
    pub(super) fn read(root: &Path, read: &impl Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut tree = Self { modules: BTreeMap::new() };
        tree.read_file(Place::new(), root, Path::new(""), read)?;
        Ok(tree)
    }

    pub(super) fn len(&self) -> usize {
        self.modules.len()
    }

    /// `folder`: where the files of the modules in this one are.
    fn read_file(
        &mut self,
        place: Place,
        file: &Path,
        folder: &Path,
        read: &impl Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let text = read(file).with_context(|| format!("{} is missing", file.display()))?;
        let tokens = tokens::read(&text).with_context(|| file.display().to_string())?;
        self.read_module(place, tokens, file, folder, read)
    }

    fn read_module(
        &mut self,
        place: Place,
        tokens: Vec<Token>,
        file: &Path,
        folder: &Path,
        read: &impl Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        module.scan(tokens, true);
        if module.is_test {
            return Ok(());
        }
        for Inner { name, text } in std::mem::take(&mut module.inner) {
            let mut inner = place.clone();
            inner.push(name.clone());
            let below = folder.join(&name);
            if let Some(text) = text {
                self.read_module(inner, text, file, &below, read)?;
                continue;
            }
            let beside = folder.join(format!("{name}.rs"));
            let file = if read(&beside).is_some() { beside } else { below.join("mod.rs") };
            self.read_file(inner, &file, &below, read)?;
        }
        self.modules.insert(place, module);
        Ok(())
    }
}

/// Before the name of an item.
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];

impl Module {
    /// `outermost`: these are the module's own items, not what is within one.
    fn scan(&mut self, tokens: Vec<Token>, outermost: bool) {
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            if let Some((attribute, whole_file, length)) = attribute(rest) {
                at += length;
                if is_test_only(attribute) {
                    self.is_test |= whole_file && outermost;
                    at += if whole_file { 0 } else { item_length(&tokens[at..]) };
                }
                continue;
            }
            at += match &rest[0] {
                Token::Word(word) if word == "use" && !is_mark(rest.get(1), '<') => {
                    let length = 1 + rest[1..].iter().take_while(|token| !is_mark(Some(token), ';')).count();
                    self.import(&rest[1..length], &Vec::new());
                    length
                }
                Token::Word(word) if word == "mod" && outermost => self.inner_module(rest),
                Token::Word(_) => {
                    let path = path(rest);
                    if outermost && path.len() == 1 {
                        self.note_item(rest);
                    }
                    let length = path.len() * 3 - 2;
                    let is_continued = at > 0 && is_mark(tokens.get(at - 1), ':') && {
                        at > 1 && is_mark(tokens.get(at - 2), ':')
                    };
                    if path.len() > 1 && !is_continued {
                        self.paths.insert(path);
                    }
                    length
                }
                Token::Group { inside, .. } => {
                    self.scan(inside.clone(), false);
                    1
                }
                Token::Mark(_) | Token::Literal => 1,
            };
        }
    }

    fn note_item(&mut self, rest: &[Token]) {
        let before = rest[0].word();
        // macro_rules! name
        let name = if before == "macro_rules" { rest.get(2) } else { rest.get(1) };
        if let Some(Token::Word(name)) = name.filter(|_| ITEMS.contains(&before)) {
            self.items.insert(name.clone());
        }
    }

    /// `mod name;` or `mod name { … }`. Returns how many tokens that is.
    fn inner_module(&mut self, rest: &[Token]) -> usize {
        let name = rest.get(1).map(|name| name.word().to_owned()).unwrap_or_default();
        let text = match rest.get(2) {
            Some(Token::Group { inside, .. }) => Some(inside.clone()),
            _ => None,
        };
        self.inner.push(Inner { name, text });
        3
    }

    /// One branch of a `use` tree, behind `before`.
    fn import(&mut self, tokens: &[Token], before: &[String]) {
        let mut path = before.to_vec();
        let mut name = None;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                Token::Word(word) if word == "as" => {
                    name = tokens.get(at + 1).map(|name| name.word().to_owned());
                    break;
                }
                // `a::{self}` is `a`.
                Token::Word(word) if word == "self" && !path.is_empty() => {}
                Token::Word(word) => path.push(word.clone()),
                Token::Mark('*') => {
                    self.imports.insert(Import { path, name: None });
                    return;
                }
                Token::Group { inside, .. } => return self.import_each(inside, &path),
                Token::Mark(_) | Token::Literal => {}
            }
            at += 1;
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.imports.insert(Import { path, name: Some(name) });
        }
    }

    fn import_each(&mut self, tokens: &[Token], before: &[String]) {
        for branch in tokens.split(|token| is_mark(Some(token), ',')) {
            if !branch.is_empty() {
                self.import(branch, before);
            }
        }
    }
}

fn is_mark(token: Option<&Token>, wanted: char) -> bool {
    token.is_some_and(|token| token.is_mark(wanted))
}

/// The names of `a::b::c`, from the first token on.
fn path(tokens: &[Token]) -> Vec<String> {
    let mut names = vec![tokens[0].word().to_owned()];
    let mut rest = &tokens[1..];
    while let [Token::Mark(':'), Token::Mark(':'), Token::Word(name), more @ ..] = rest {
        names.push(name.clone());
        rest = more;
    }
    names
}

/// An attribute, whether it is one of all that is around it (`#!`), and how many tokens it has.
fn attribute(tokens: &[Token]) -> Option<(&[Token], bool, usize)> {
    if !is_mark(tokens.first(), '#') {
        return None;
    }
    let inner = is_mark(tokens.get(1), '!');
    let at = 1 + usize::from(inner);
    match tokens.get(at) {
        Some(Token::Group { open: '[', inside }) => Some((inside, inner, at + 1)),
        _ => None,
    }
}

fn is_test_only(attribute: &[Token]) -> bool {
    match attribute {
        [cfg, Token::Group { inside, .. }] if cfg.word() == "cfg" => {
            inside.iter().map(Token::word).eq(["test"])
        }
        _ => false,
    }
}

/// How many tokens the next item has, its attributes included.
fn item_length(tokens: &[Token]) -> usize {
    let mut at = 0;
    while let Some((_, _, length)) = attribute(&tokens[at..]) {
        at += length;
    }
    let mut is_use = false;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            Token::Word(word) if word == "use" => is_use = true,
            Token::Group { open: '{', .. } if !is_use => return index + 1,
            token if is_mark(Some(token), ';') => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

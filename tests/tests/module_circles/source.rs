//! The modules of a crate, and which paths each of them names.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

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
    text: Option<TokenStream>,
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
        let tokens = text.parse().map_err(|error| anyhow!("{}: {error}", file.display()))?;
        self.read_module(place, tokens, file, folder, read)
    }

    fn read_module(
        &mut self,
        place: Place,
        tokens: TokenStream,
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
    fn scan(&mut self, tokens: TokenStream, outermost: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
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
                TokenTree::Ident(word) if word == "use" && !is_punct(rest.get(1), '<') => {
                    let length = 1 + rest[1..].iter().take_while(|token| !is_punct(Some(token), ';')).count();
                    self.import(&rest[1..length], &Vec::new());
                    length
                }
                TokenTree::Ident(word) if word == "mod" && outermost => self.inner_module(rest),
                TokenTree::Ident(_) => {
                    let path = path(rest);
                    if outermost && path.len() == 1 {
                        self.note_item(rest);
                    }
                    let length = path.len() * 3 - 2;
                    let is_continued = at > 0 && is_punct(tokens.get(at - 1), ':') && {
                        at > 1 && is_punct(tokens.get(at - 2), ':')
                    };
                    if path.len() > 1 && !is_continued {
                        self.paths.insert(path);
                    }
                    length
                }
                TokenTree::Group(group) => {
                    self.scan(group.stream(), false);
                    1
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => 1,
            };
        }
    }

    fn note_item(&mut self, rest: &[TokenTree]) {
        let before = rest[0].to_string();
        // macro_rules! name
        let name = if before == "macro_rules" { rest.get(2) } else { rest.get(1) };
        if let Some(TokenTree::Ident(name)) = name.filter(|_| ITEMS.contains(&before.as_str())) {
            self.items.insert(name.to_string());
        }
    }

    /// `mod name;` or `mod name { … }`. Returns how many tokens that is.
    fn inner_module(&mut self, rest: &[TokenTree]) -> usize {
        let name = rest.get(1).map(ToString::to_string).unwrap_or_default();
        let text = match rest.get(2) {
            Some(TokenTree::Group(group)) => Some(group.stream()),
            _ => None,
        };
        self.inner.push(Inner { name, text });
        3
    }

    /// One branch of a `use` tree, behind `before`.
    fn import(&mut self, tokens: &[TokenTree], before: &[String]) {
        let mut path = before.to_vec();
        let mut name = None;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = tokens.get(at + 1).map(ToString::to_string);
                    break;
                }
                // `a::{self}` is `a`.
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    self.imports.insert(Import { path, name: None });
                    return;
                }
                TokenTree::Group(group) => return self.import_each(group, &path),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.imports.insert(Import { path, name: Some(name) });
        }
    }

    fn import_each(&mut self, group: &Group, before: &[String]) {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        for branch in tokens.split(|token| is_punct(Some(token), ',')) {
            if !branch.is_empty() {
                self.import(branch, before);
            }
        }
    }
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// The names of `a::b::c`, from the first token on.
fn path(tokens: &[TokenTree]) -> Vec<String> {
    let mut names = vec![tokens[0].to_string()];
    let mut rest = &tokens[1..];
    while let [TokenTree::Punct(one), TokenTree::Punct(other), TokenTree::Ident(name), more @ ..] = rest {
        if one.as_char() != ':' || other.as_char() != ':' {
            break;
        }
        names.push(name.to_string());
        rest = more;
    }
    names
}

/// An attribute, whether it is one of all that is around it (`#!`), and how many tokens it has.
fn attribute(tokens: &[TokenTree]) -> Option<(&Group, bool, usize)> {
    if !is_punct(tokens.first(), '#') {
        return None;
    }
    let inner = is_punct(tokens.get(1), '!');
    let at = 1 + usize::from(inner);
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => {
            Some((group, inner, at + 1))
        }
        _ => None,
    }
}

fn is_test_only(attribute: &Group) -> bool {
    attribute.stream().to_string().replace(' ', "") == "cfg(test)"
}

/// How many tokens the next item has, its attributes included.
fn item_length(tokens: &[TokenTree]) -> usize {
    let mut at = 0;
    while let Some((_, _, length)) = attribute(&tokens[at..]) {
        at += length;
    }
    let mut is_use = false;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            TokenTree::Ident(word) if word == "use" => is_use = true,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !is_use => return index + 1,
            token if is_punct(Some(token), ';') => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

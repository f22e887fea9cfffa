//! Who uses whom, and where that goes in a circle.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use super::source::{Import, ModuleTree, Place};

/// Re-exports that are followed one after the other; more are a re-export of itself.
const MOST_RE_EXPORTS: usize = 16;

/// Modules of which each uses all others, if only through them.
#[derive(Debug)]
pub(super) struct Circle {
    /// The module that they are in; empty: the crate itself.
    pub(super) above: String,
    pub(super) modules: BTreeSet<String>,
    /// Who uses whom within the circle, and the files that say so.
    edges: BTreeMap<(String, String), BTreeSet<PathBuf>>,
}

impl fmt::Display for Circle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = if self.above.is_empty() { "(root)" } else { &self.above };
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        write!(formatter, "{above}: {}", modules.join(", "))?;
        for ((from, to), files) in &self.edges {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            write!(formatter, "\n    {from} -> {to}: {}", files.join(", "))?;
        }
        Ok(())
    }
}

impl ModuleTree {
    /// The modules that a path in the module `from` goes through or ends in, if it is one of this crate.
    fn targets(&self, from: &[String], path: &[String], left: usize) -> Vec<Place> {
        let Some((head, rest)) = path.split_first() else { return Vec::new() };
        let mut at = from.to_vec();
        let rest = match head.as_str() {
            "crate" => {
                at.clear();
                rest
            }
            "self" => rest,
            "super" => {
                at.pop();
                let more = rest.iter().take_while(|name| *name == "super").count();
                at.truncate(at.len().saturating_sub(more));
                &rest[more..]
            }
            name if self.has(from, name, left) => path,
            _ => return Vec::new(),
        };
        for (index, name) in rest.iter().enumerate() {
            let below = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&below) {
                at = below;
                continue;
            }
            // It is an item of this module, or one that this module has from elsewhere.
            let mut found = vec![at.clone()];
            if left > 0
                && let Some(origin) = self.origin(&at, name, left)
            {
                let path = [origin.as_slice(), &rest[index + 1..]].concat();
                found.extend(self.targets(&at, &path, left - 1));
            }
            return found;
        }
        vec![at]
    }

    /// Whether a module has such a name: a module, an item or an import, if only by one of all names of another module.
    fn has(&self, place: &[String], name: &str, left: usize) -> bool {
        let Some(module) = self.modules.get(place) else { return false };
        let below = [place, &[name.to_owned()]].concat();
        self.modules.contains_key(&below)
            || module.items.contains(name)
            || module.imports.iter().any(|import| import.name.as_deref() == Some(name))
            || self.of_all_names(place, name, left).is_some()
    }

    /// The path by which a module has a name from elsewhere.
    fn origin(&self, place: &[String], name: &str, left: usize) -> Option<Vec<String>> {
        let module = self.modules.get(place)?;
        if module.items.contains(name) {
            return None;
        }
        let named = module.imports.iter().find(|import| import.name.as_deref() == Some(name));
        named.map(|import| import.path.clone()).or_else(|| self.of_all_names(place, name, left))
    }

    /// The path by which a module has a name from another one of which it has all names.
    fn of_all_names(&self, place: &[String], name: &str, left: usize) -> Option<Vec<String>> {
        let left = left.checked_sub(1)?;
        let has_it = |import: &&Import| {
            let other = self.targets(place, &import.path, left).pop();
            other.is_some_and(|other| other != place && self.has(&other, name, left))
        };
        let all = &self.modules.get(place)?.imports;
        let found = all.iter().filter(|import| import.name.is_none()).find(has_it)?;
        Some([found.path.as_slice(), &[name.to_owned()]].concat())
    }
}

type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<PathBuf>>>;

/// For each module, who of those within it uses whom.
fn edges(tree: &ModuleTree) -> BTreeMap<Place, Edges> {
    let mut all: BTreeMap<Place, Edges> = BTreeMap::new();
    for (place, module) in &tree.modules {
        let imported = module.imports.iter().map(|import| &import.path);
        let targets =
            imported.chain(&module.paths).flat_map(|path| tree.targets(place, path, MOST_RE_EXPORTS));
        for target in targets {
            let common = place.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(to)) = (place.get(common), target.get(common)) {
                let beside = all.entry(place[..common].to_vec()).or_default();
                let files = beside.entry(from.clone()).or_default().entry(to.clone()).or_default();
                files.insert(module.file.clone());
            }
        }
    }
    all
}

/// All that can be reached from `from`, itself only by a circle.
fn reachable<'a>(edges: &'a Edges, from: &str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for to in edges.get(next).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    found
}

/// All circles of a crate.
pub(super) fn circles(tree: &ModuleTree) -> Vec<Circle> {
    let mut circles = Vec::new();
    for (above, edges) in edges(tree) {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            edges.keys().map(|from| (from.as_str(), reachable(&edges, from))).collect();
        let mut done: BTreeSet<&str> = BTreeSet::new();
        for (from, reached) in &reach {
            if !reached.contains(from) || done.contains(from) {
                continue;
            }
            let back = |to: &&&str| reach.get(**to).is_some_and(|others| others.contains(from));
            let modules: BTreeSet<&str> = reached.iter().filter(back).copied().collect();
            done.extend(&modules);
            let within =
                edges.iter().flat_map(|(from, all)| all.iter().map(move |(to, files)| (from, to, files)));
            let within = within
                .filter(|(from, to, _)| modules.contains(from.as_str()) && modules.contains(to.as_str()))
                .map(|(from, to, files)| ((from.clone(), to.clone()), files.clone()));
            circles.push(Circle {
                above: above.join("::"),
                edges: within.collect(),
                modules: modules.iter().map(|name| (*name).to_owned()).collect(),
            });
        }
    }
    circles
}

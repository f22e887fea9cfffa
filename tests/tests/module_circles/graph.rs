//! The graph of modules that use each other, and its circles.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::source::{Import, ModuleTree, Names};

/// Re-exports that are followed one after the other; more are a re-export of itself.
const MOST_RE_EXPORTS: usize = 16;

impl ModuleTree {
    /// The modules that a path in the module `from` goes through or ends in, if it is one of this crate.
    fn targets(&self, from: &[String], path: &[String], left: usize) -> Vec<Names> {
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
            if self.0.contains_key(&below) {
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
    fn has(&self, module: &[String], name: &str, left: usize) -> bool {
        let below = [module, &[name.to_owned()]].concat();
        self.0.contains_key(&below)
            || self.0.get(module).is_some_and(|module| module.items.contains(name))
            || self.origin(module, name, left).is_some()
    }

    /// The path by which a module has a name from elsewhere: its own import, or one of all names of another module.
    fn origin(&self, at: &[String], name: &str, left: usize) -> Option<Names> {
        let module = self.0.get(at).filter(|module| !module.items.contains(name))?;
        if let Some(named) = module.imports.iter().find(|import| import.name.as_deref() == Some(name)) {
            return Some(named.path.clone());
        }
        let left = left.checked_sub(1)?;
        let has_it = |import: &&Import| {
            let other = self.targets(at, &import.path, left).pop();
            other.is_some_and(|other| other != at && self.has(&other, name, left))
        };
        let found = module.imports.iter().filter(|import| import.name.is_none()).find(has_it)?;
        Some([found.path.as_slice(), &[name.to_owned()]].concat())
    }
}

/// Uses between modules, with the files that contain them.
type Edges = BTreeMap<(String, String), BTreeSet<PathBuf>>;

/// For each module, the edges between those within it.
fn edges(tree: &ModuleTree) -> BTreeMap<Names, Edges> {
    let mut all: BTreeMap<Names, Edges> = BTreeMap::new();
    for (at, module) in &tree.0 {
        let imported = module.imports.iter().map(|import| &import.path);
        for target in imported.chain(&module.paths).flat_map(|path| tree.targets(at, path, MOST_RE_EXPORTS)) {
            let common = at.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(to)) = (at.get(common), target.get(common)) {
                let beside = all.entry(at[..common].to_vec()).or_default();
                beside.entry((from.clone(), to.clone())).or_default().insert(module.file.clone());
            }
        }
    }
    all
}

/// All modules reachable from `from`; itself only in a circle.
fn reachable<'a>(edges: &'a Edges, from: &str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for (_, to) in edges.keys().filter(|(from, _)| from == next) {
            if found.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    found
}

/// All circles of a crate as texts: the parent module, the modules that use each other directly or not, and the files of
/// their uses.
pub(super) fn circles(tree: &ModuleTree) -> Vec<String> {
    let mut circles = Vec::new();
    for (above, edges) in edges(tree) {
        let mut left: BTreeSet<&str> = edges.keys().map(|(from, _)| from.as_str()).collect();
        while let Some(from) = left.pop_first() {
            let mut modules = reachable(&edges, from);
            if !modules.contains(from) {
                continue;
            }
            modules.retain(|to| reachable(&edges, to).contains(from));
            left.retain(|name| !modules.contains(name));
            let above = if above.is_empty() { "(root)".to_owned() } else { above.join("::") };
            let mut circle = format!("{above}: {}", Vec::from_iter(modules.iter().copied()).join(", "));
            for ((from, to), files) in &edges {
                if modules.contains(from.as_str()) && modules.contains(to.as_str()) {
                    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                    circle.push_str(&format!("\n    {from} -> {to}: {}", files.join(", ")));
                }
            }
            circles.push(circle);
        }
    }
    circles
}

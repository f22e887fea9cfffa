//! An ordered map whose copies share what they have in common.
//!
//! A copy of a [`SharedMap`] is one counted reference. A change copies the nodes between the root and the changed entry,
//! as far as another copy still has them too, and no more: with 20,000 entries that is 15 small nodes. So the loop can
//! change a copy of the whole state, throw it away when the commit fails, and hand the state that counts to every reader,
//! for next to nothing. It is an AVL tree. The published crates for this are under the MPL, which deny.toml leaves out.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// See the module.
pub(super) struct SharedMap<K, V> {
    root: Link<K, V>,
    len: usize,
}

type Link<K, V> = Option<Arc<Node<K, V>>>;

#[derive(Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    height: u8,
    left: Link<K, V>,
    right: Link<K, V>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl<K, V> SharedMap<K, V> {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in the order of their keys.
    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { open: Vec::new() };
        iter.open_left(self.root.as_deref());
        iter
    }

    /// All values in the order of their keys.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entry with the smallest key.
    pub(super) fn first(&self) -> Option<(&K, &V)> {
        let mut node = self.root.as_deref()?;
        while let Some(left) = node.left.as_deref() {
            node = left;
        }
        Some((&node.key, &node.value))
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut link = self.root.as_deref();
        while let Some(node) = link {
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => node.left.as_deref(),
                Ordering::Greater => node.right.as_deref(),
                Ordering::Equal => return Some(&node.value),
            };
        }
        None
    }

    pub(super) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The value to be changed in this copy alone.
    pub(super) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            // Nothing is copied for a key that is not there.
            return None;
        }
        let mut link = &mut self.root;
        while let Some(node) = link {
            let node = Arc::make_mut(node);
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &mut node.left,
                Ordering::Greater => &mut node.right,
                Ordering::Equal => return Some(&mut node.value),
            };
        }
        None
    }

    /// Returns the value that was there before.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = insert(&mut self.root, key, value);
        self.len += usize::from(before.is_none());
        before
    }

    /// Returns the value that was there.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        let removed = remove(&mut self.root, key);
        self.len -= usize::from(removed.is_some());
        removed
    }
}

/// See [`SharedMap::iter`].
pub(super) struct Iter<'a, K, V> {
    /// Nodes whose left sides are done, the next one last.
    open: Vec<&'a Node<K, V>>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn open_left(&mut self, mut link: Option<&'a Node<K, V>>) {
        while let Some(node) = link {
            self.open.push(node);
            link = node.left.as_deref();
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.open.pop()?;
        self.open_left(node.right.as_deref());
        Some((&node.key, &node.value))
    }
}

impl<K, V> Node<K, V> {
    /// Sets the height after a side changed; both sides' own are right.
    fn measure(&mut self) {
        self.height = 1 + height(&self.left).max(height(&self.right));
    }
}

fn height<K, V>(link: &Link<K, V>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

fn insert<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>, key: K, value: V) -> Option<V> {
    let Some(node) = link else {
        *link = Some(Arc::new(Node { key, value, height: 1, left: None, right: None }));
        return None;
    };
    let node = Arc::make_mut(node);
    let before = match key.cmp(&node.key) {
        Ordering::Less => insert(&mut node.left, key, value),
        Ordering::Greater => insert(&mut node.right, key, value),
        Ordering::Equal => return Some(std::mem::replace(&mut node.value, value)),
    };
    if before.is_none() {
        balance(link);
    }
    before
}

fn remove<K, V, Q>(link: &mut Link<K, V>, key: &Q) -> Option<V>
where
    K: Ord + Clone + Borrow<Q>,
    V: Clone,
    Q: Ord + ?Sized,
{
    let node = Arc::make_mut(link.as_mut()?);
    let removed = match key.cmp(node.key.borrow()) {
        Ordering::Less => remove(&mut node.left, key),
        Ordering::Greater => remove(&mut node.right, key),
        Ordering::Equal => {
            let Node { value, left, mut right, .. } = Arc::unwrap_or_clone(link.take()?);
            *link = match take_first(&mut right) {
                // The next larger entry takes its place.
                Some((key, value)) => Some(Arc::new(Node { key, value, height: 0, left, right })),
                None => left,
            };
            Some(value)
        }
    };
    balance(link);
    removed
}

fn take_first<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>) -> Option<(K, V)> {
    let node = Arc::make_mut(link.as_mut()?);
    if node.left.is_some() {
        let first = take_first(&mut node.left);
        balance(link);
        return first;
    }
    let Node { key, value, right, .. } = Arc::unwrap_or_clone(link.take()?);
    *link = right;
    Some((key, value))
}

/// Makes the sides of a node differ by at most one in height again, after one of them changed by one.
fn balance<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(node) = link else { return };
    let node = Arc::make_mut(node);
    let (left, right) = (height(&node.left), height(&node.right));
    if left > right + 1 {
        if node.left.as_ref().is_some_and(|child| height(&child.left) < height(&child.right)) {
            rotate_left(&mut node.left);
        }
        rotate_right(link);
    } else if right > left + 1 {
        if node.right.as_ref().is_some_and(|child| height(&child.right) < height(&child.left)) {
            rotate_right(&mut node.right);
        }
        rotate_left(link);
    } else {
        node.measure();
    }
}

/// The left child takes the node's place.
fn rotate_right<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(mut top) = link.take() else { return };
    let node = Arc::make_mut(&mut top);
    let Some(mut child) = node.left.take() else {
        *link = Some(top);
        return;
    };
    let up = Arc::make_mut(&mut child);
    node.left = up.right.take();
    node.measure();
    up.right = Some(top);
    up.measure();
    *link = Some(child);
}

/// The right child takes the node's place.
fn rotate_left<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(mut top) = link.take() else { return };
    let node = Arc::make_mut(&mut top);
    let Some(mut child) = node.right.take() else {
        *link = Some(top);
        return;
    };
    let up = Arc::make_mut(&mut child);
    node.right = up.left.take();
    node.measure();
    up.left = Some(top);
    up.measure();
    *link = Some(child);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Checks order, heights and balance; returns the number of entries.
    fn check(link: &Link<u8, u32>) -> usize {
        let Some(node) = link else { return 0 };
        let (left, right) = (height(&node.left), height(&node.right));
        assert!(left.abs_diff(right) <= 1 && node.height == 1 + left.max(right));
        assert!(node.left.as_ref().is_none_or(|child| child.key < node.key));
        assert!(node.right.as_ref().is_none_or(|child| child.key > node.key));
        check(&node.left) + 1 + check(&node.right)
    }

    fn same(map: &SharedMap<u8, u32>, model: &BTreeMap<u8, u32>) {
        assert_eq!(check(&map.root), model.len());
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        assert!(map.iter().eq(model.iter()));
        assert_eq!(map.first(), model.first_key_value());
    }

    proptest! {
        #[test]
        fn does_what_a_btree_map_does_and_leaves_its_copies_alone(
            steps in prop::collection::vec((0u8..4, any::<u8>(), any::<u32>()), 0..400),
        ) {
            let (mut map, mut model) = (SharedMap::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    1 => {
                        if let Some(found) = map.get_mut(&key) {
                            *found = value;
                        }
                        if let Some(found) = model.get_mut(&key) {
                            *found = value;
                        }
                    }
                    _ => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                if value % 16 == 0 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            copies.push((map, model));
            copies.iter().for_each(|(map, model)| same(map, model));
        }
    }

    #[test]
    fn a_change_copies_only_the_way_to_it() {
        let mut map: SharedMap<u32, u32> = SharedMap::default();
        for key in 0..20_000 {
            map.insert(key, key);
        }
        let copy = map.clone();
        map.insert(777, 0);
        fn addresses(link: &Link<u32, u32>, all: &mut std::collections::HashSet<usize>) {
            let Some(node) = link else { return };
            all.insert(Arc::as_ptr(node) as usize);
            addresses(&node.left, all);
            addresses(&node.right, all);
        }
        let (mut old, mut new) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        addresses(&copy.root, &mut old);
        addresses(&map.root, &mut new);
        assert!(new.difference(&old).count() <= 20, "{}", new.difference(&old).count());
        assert_eq!((copy.get(&777), map.get(&777)), (Some(&777), Some(&0)));
    }
}

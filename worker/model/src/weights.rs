//! Weights straight from safetensors files by memory map.
//!
//! Tables that are only looked up stay on the mapping: they cost no private memory and are shared with every other
//! process that maps the file. So does what is computed with where its type is the wanted one and it begins at a
//! multiple of 64 bytes; what needs another type, layout or place is copied, once.
//! A mapped file must not be cut short while it is in use (the operating system would stop the process).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringtune_engine::LayerShape;
use ringtune_layout::TensorPlace;
use safetensors::tensor::Dtype;
use tch::{Device, Kind, Tensor};

use crate::adapters::{Place, Site, Sites};
use crate::error::{Error, Result};
use crate::mapped_file::{MappedFile, Stored, map_file, read_metadata};
use crate::native;
use crate::trained::{LayerTensor, TrainedTensor};

/// Alignment of tensors that libtorch allocates itself (c10's `gAlignment`).
const ALIGNMENT: usize = 64;

/// Maps a file's tensor name to the name this crate asks for; `None` drops the tensor.
pub type Rename = fn(&str) -> Option<String>;

/// The tensors of one component (text encoder, UNet or VAE) of a model.
pub struct Weights {
    label: PathBuf,
    entries: BTreeMap<String, Entry>,
    /// Each with its number in the order in which they were first asked for, and the shape that it has to have.
    taken: RefCell<BTreeMap<String, (usize, Vec<i64>)>>,
    /// Those that are trained: layers take these instead.
    trained: BTreeMap<String, TrainedTensor>,
    /// The layers that were built of them which adapters can stand beside.
    sites: Sites,
    /// Only check names and shapes: every tensor handed out is empty.
    dry: bool,
    /// There is no file: every tensor that is asked for is there, and zeros.
    absent: bool,
    /// Whether the file has other names than are asked for here, and no config.json.
    placed: bool,
}

struct Entry {
    file: Arc<MappedFile>,
    stored_name: String,
    dtype: Dtype,
    shape: Vec<i64>,
    start: usize,
}

impl Weights {
    /// Opens `folder`/`stem`.safetensors, or the shards of `folder`/`stem`.safetensors.index.json; of a variant
    /// ("fp16"; empty: none) `stem`.fp16.safetensors or `stem`.safetensors.index.fp16.json.
    ///
    /// Errors: no such file ([`Error::NotAModel`], or [`Error::PickleOnly`] when there are only pickles), a
    /// damaged file ([`Error::BadSafetensors`]).
    pub fn open(folder: &Path, stem: &str, variant: &str, rename: Rename) -> Result<Self> {
        let dotted = if variant.is_empty() { String::new() } else { format!(".{variant}") };
        let single = folder.join(format!("{stem}{dotted}.safetensors"));
        let index = folder.join(format!("{stem}.safetensors.index{dotted}.json"));
        if single.is_file() {
            return Self::open_file(&single, rename);
        }
        if index.is_file() {
            return Self::open_shards(folder, &index, rename);
        }
        Err(no_weights(folder, stem, &dotted))
    }

    /// Opens one safetensors file.
    pub fn open_file(path: &Path, rename: Rename) -> Result<Self> {
        let mut weights = Self::empty(path);
        weights.add_file(path, renamed(rename, |_| true))?;
        Ok(weights)
    }

    /// Opens one safetensors file whose tensors of a name and shape belong in several places, or in none.
    pub(crate) fn open_placed(
        path: &Path,
        places: impl Fn(&str, &[usize]) -> Vec<TensorPlace>,
    ) -> Result<Self> {
        let mut weights = Self::empty(path);
        weights.placed = true;
        weights.add_file(path, places)?;
        Ok(weights)
    }

    /// Source of the expected tensors.
    fn by(&self) -> &'static str {
        if self.placed { "the network that the file's other tensors make" } else { "config.json" }
    }

    /// A missing tensor by the name that the file would have for it, as far as what lies beside it there tells.
    fn shown(&self, name: &str) -> String {
        let in_file = || {
            let (module, own) = name.rsplit_once('.')?;
            let below = format!("{module}.");
            let mut beside =
                self.entries.range(below.clone()..).take_while(|(name, _)| name.starts_with(&below));
            beside.find_map(|(sibling, entry)| {
                let stored = entry.stored_name.strip_suffix(sibling.strip_prefix(&below)?)?;
                Some(format!("{stored}{own}"))
            })
        };
        self.placed.then(in_file).flatten().unwrap_or_else(|| name.to_string())
    }

    fn open_shards(folder: &Path, index: &Path, rename: Rename) -> Result<Self> {
        let bad = |reason: String| Error::Json { file: index.to_path_buf(), reason };
        let text = std::fs::read_to_string(index)
            .map_err(|source| Error::Io { file: index.to_path_buf(), source })?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let map = value
            .get("weight_map")
            .and_then(|map| map.as_object())
            .ok_or_else(|| bad("has no object 'weight_map' from tensor names to file names".to_string()))?;
        let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (tensor, file) in map {
            let file = file
                .as_str()
                .filter(|name| Path::new(name).file_name().is_some_and(|last| last == *name))
                .ok_or_else(|| {
                    bad(format!("'{tensor}' maps to {file}, allowed is a file name of this folder"))
                })?;
            shards.entry(file).or_default().insert(tensor);
        }
        let mut weights = Self::empty(index);
        for (file, tensors) in shards {
            let places = renamed(rename, |name| tensors.contains(name));
            let found = weights.add_file(&folder.join(file), places)?;
            if let Some(missing) = tensors.iter().find(|name| !found.contains(**name)) {
                return Err(bad(format!("tensor '{missing}' is not in {file}, where the index puts it")));
            }
        }
        Ok(weights)
    }

    fn empty(label: &Path) -> Self {
        Weights {
            label: label.to_path_buf(),
            entries: BTreeMap::new(),
            taken: RefCell::default(),
            trained: BTreeMap::new(),
            sites: Sites::default(),
            dry: false,
            absent: false,
            placed: false,
        }
    }

    /// Of no file: whatever is asked for is there, in any shape, and zeros that take no memory.
    pub(crate) fn absent(label: &Path) -> Self {
        Weights { absent: true, ..Self::empty(label) }
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.absent
    }

    /// Maps one file and adds its tensors where `places` says; returns all stored names.
    fn add_file(
        &mut self,
        path: &Path,
        places: impl Fn(&str, &[usize]) -> Vec<TensorPlace>,
    ) -> Result<BTreeSet<String>> {
        let file = Arc::new(map_file(path)?);
        let (header, metadata) = read_metadata(&file)?;
        let mut found = BTreeSet::new();
        // In which order the library has them is left to chance.
        for (name, info) in BTreeMap::from_iter(metadata.tensors()) {
            let (start, end) = info.data_offsets;
            for place in places(&name, &info.shape) {
                let (shape, first_row) = place.part.of(&info.shape);
                let shape = shape.into_iter().map(i64::try_from).collect::<std::result::Result<_, _>>();
                let shape = shape.map_err(|_| Error::BadSafetensors {
                    file: path.to_path_buf(),
                    reason: format!("tensor '{name}' has an impossible shape {:?}", info.shape),
                })?;
                let rows = info.shape.first().copied().unwrap_or(1).max(1);
                let entry = Entry {
                    file: file.clone(),
                    stored_name: name.clone(),
                    dtype: info.dtype,
                    shape,
                    start: 8 + header + start + (end - start) / rows * first_row,
                };
                if let Some(other) = self.entries.insert(place.name, entry) {
                    // In which order a header's names come is left to chance.
                    let mut names = [other.stored_name.as_str(), name.as_str()];
                    names.sort_unstable();
                    let [one, two] = names;
                    let reason = format!("tensors '{one}' and '{two}' are the same one under two names");
                    return Err(Error::BadSafetensors { file: path.to_path_buf(), reason });
                }
            }
            found.insert(name);
        }
        Ok(found)
    }

    /// From here on only names and shapes are checked, and every tensor handed out is empty.
    pub(crate) fn into_dry(mut self) -> Self {
        self.dry = true;
        self
    }

    /// From here on layers take these instead of what is stored.
    pub(crate) fn with_trained(self, trained: BTreeMap<String, TrainedTensor>) -> Self {
        Weights { trained, ..self }
    }

    /// The names and shapes that were asked for, in the order in which they first were.
    pub(crate) fn asked(&self) -> Vec<(String, Vec<i64>)> {
        let taken = self.taken.borrow();
        let mut asked: Vec<_> = taken.iter().collect();
        asked.sort_by_key(|(_, (number, _))| *number);
        asked.into_iter().map(|(name, (_, shape))| (name.clone(), shape.clone())).collect()
    }

    /// The scope of all names.
    pub fn root(&self) -> Scope<'_> {
        Scope { weights: self, prefix: String::new() }
    }

    /// The layers that were built of them which adapters can stand beside.
    pub(crate) fn into_sites(self) -> Vec<Site> {
        self.sites.into_inner()
    }

    /// Whether there is a tensor `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Names the first tensor with a number that is not finite, and its file; in order of this crate's names.
    pub(crate) fn broken_tensor(&self) -> Result<Option<String>> {
        for entry in self.entries.values() {
            if !entry.stored_tensor()?.f_isfinite()?.f_all()?.f_double_value(&[]).is_ok_and(|all| all == 1.0)
            {
                let (file, name) = (entry.file.path.display(), &entry.stored_name);
                return Ok(Some(format!("the tensor '{name}' of {file} holds such numbers")));
            }
        }
        Ok(None)
    }

    /// Every tensor must have been asked for by now; [`Error::ExtraTensors`] names those that were not.
    pub fn finish(&self) -> Result<()> {
        let taken = self.taken.borrow();
        let extra: Vec<&Entry> = self
            .entries
            .iter()
            .filter(|(name, _)| !taken.contains_key(*name))
            .map(|(_, entry)| entry)
            .collect();
        if extra.is_empty() {
            return Ok(());
        }
        let mut names: Vec<String> =
            extra.iter().take(5).map(|entry| format!("'{}' {:?}", entry.stored_name, entry.shape)).collect();
        if extra.len() > names.len() {
            names.push("…".to_string());
        }
        let (file, count, by) = (self.label.clone(), extra.len(), self.by());
        Err(Error::ExtraTensors { file, count, names: names.join(", "), by })
    }
}

/// A place in the tree of tensor names, such as `down_blocks.0.resnets.1`.
#[derive(Clone)]
pub struct Scope<'a> {
    weights: &'a Weights,
    prefix: String,
}

impl<'a> Scope<'a> {
    /// The scope below this one: `scope.sub("resnets").sub(1)`.
    pub fn sub(&self, name: impl std::fmt::Display) -> Scope<'a> {
        Scope { weights: self.weights, prefix: self.name_of(name) }
    }

    fn name_of(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// The tensor `name` of exactly `shape`, as `kind` (F32 and BF16 are used), contiguous.
    ///
    /// It begins at a multiple of [`ALIGNMENT`], as every tensor that libtorch allocates: the kernels for matrices and
    /// convolutions sum in another order on other addresses, so that the last bits would depend on where in its file a
    /// tensor lies. Without a copy where it is stored as `kind` and lies so. Never write to it: it may be the mapping.
    pub fn tensor(&self, name: &str, shape: &[i64], kind: Kind) -> Result<Tensor> {
        if self.weights.absent {
            return self.zeros(name, shape, kind);
        }
        let entry = self.entry(name, shape)?;
        if self.weights.dry {
            return Ok(Tensor::new());
        }
        if entry.kind()? == kind && !(entry.bytes(kind).as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Ok(Tensor::f_from_data_size(entry.bytes(kind), &entry.shape, kind)?);
        }
        // A copy for another kind; to_kind returns a view of the mapping when there is nothing to convert.
        Ok(entry.stored_tensor()?.f_to_kind(kind)?)
    }

    /// As above, for kernels whose sums do not depend on addresses: without a copy if it is stored as `kind`.
    pub fn tensor_in_place(&self, name: &str, shape: &[i64], kind: Kind) -> Result<Tensor> {
        let tensor = self.stored_tensor(name, shape)?;
        if self.weights.dry { Ok(tensor) } else { Ok(tensor.f_to_kind(kind)?) }
    }

    /// The tensor as it is stored (F32, F16 or BF16), for tables that are only looked up.
    pub fn stored_tensor(&self, name: &str, shape: &[i64]) -> Result<Tensor> {
        let entry = self.entry(name, shape)?;
        if self.weights.dry { Ok(Tensor::new()) } else { entry.stored_tensor() }
    }

    /// The tensor `name` of exactly `shape`, as `kind` where it is not trained.
    pub(crate) fn layer_tensor(&self, name: &str, shape: &[i64], kind: Kind) -> Result<LayerTensor> {
        if self.is_trained(name) && !self.weights.absent {
            self.entry(name, shape)?;
        }
        match self.weights.trained.get(&self.name_of(name)) {
            Some(trained) => Ok(LayerTensor::Trained(trained.shallow_clone())),
            None => Ok(LayerTensor::Frozen(self.tensor(name, shape, kind)?)),
        }
    }

    /// Whether a tensor is trained; what is in no file will be.
    pub(crate) fn is_trained(&self, name: &str) -> bool {
        self.weights.absent || self.weights.trained.contains_key(&self.name_of(name))
    }

    /// The tensor `name` of exactly `shape`, to be read later, and again.
    pub(crate) fn stored(&self, name: &str, shape: &[i64]) -> Result<Stored> {
        let entry = self.entry(name, shape)?;
        let MappedFile { path, file, .. } = &*entry.file;
        let (shape, kind) = (entry.shape.clone(), entry.kind()?);
        Ok(Stored { path: path.clone(), file: file.clone(), start: entry.start, shape, kind })
    }

    /// The place of an adapter of the layer of this scope, whose weight is of `shape`: [outputs, inputs], of a convolution
    /// [outputs, inputs, side, side].
    pub(crate) fn site(&self, shape: &[i64]) -> Place {
        let side = |dimension: usize| shape.get(dimension).copied().unwrap_or_default();
        let site = Site {
            name: self.prefix.clone(),
            inputs: side(1),
            outputs: side(0),
            shape: match shape {
                [_, _, side, _] => LayerShape::Convolution { side: *side as usize },
                _ => LayerShape::Matrix,
            },
            place: Place::default(),
        };
        let place = site.place.clone();
        self.weights.sites.borrow_mut().push(site);
        place
    }

    /// Whether tensors are only checked, not loaded.
    pub(crate) fn is_dry(&self) -> bool {
        self.weights.dry
    }

    /// A tensor that no file has.
    fn zeros(&self, name: &str, shape: &[i64], kind: Kind) -> Result<Tensor> {
        self.taken(name, shape);
        if self.weights.dry {
            return Ok(Tensor::new());
        }
        Ok(Tensor::f_zeros([1], (kind, Device::Cpu))?.f_expand(shape, false)?)
    }

    fn taken(&self, name: &str, shape: &[i64]) {
        let mut taken = self.weights.taken.borrow_mut();
        let number = taken.len();
        taken.entry(self.name_of(name)).or_insert_with(|| (number, shape.to_vec()));
    }

    fn entry(&self, name: &str, shape: &[i64]) -> Result<&'a Entry> {
        let full = self.name_of(name);
        let entry = self.weights.entries.get(&full).ok_or_else(|| Error::MissingTensor {
            file: self.weights.label.clone(),
            tensor: self.weights.shown(&full),
            expected: shape.to_vec(),
        })?;
        if entry.shape != shape {
            return Err(Error::WrongShape {
                file: entry.file.path.clone(),
                tensor: entry.stored_name.clone(),
                found: entry.shape.clone(),
                expected: shape.to_vec(),
                by: self.weights.by(),
            });
        }
        entry.kind()?;
        self.taken(name, shape);
        Ok(entry)
    }
}

impl Entry {
    fn kind(&self) -> Result<Kind> {
        match self.dtype {
            Dtype::F32 => Ok(Kind::Float),
            Dtype::F16 => Ok(Kind::Half),
            Dtype::BF16 => Ok(Kind::BFloat16),
            other => Err(Error::WrongType {
                file: self.file.path.clone(),
                tensor: self.stored_name.clone(),
                found: format!("{other:?}"),
            }),
        }
    }

    /// Its place on the mapping; `kind`: its own.
    fn bytes(&self, kind: Kind) -> &[u8] {
        let length = self.shape.iter().product::<i64>() as usize * kind.elt_size_in_bytes();
        &self.file.map[self.start..self.start + length]
    }

    fn stored_tensor(&self) -> Result<Tensor> {
        let kind = self.kind()?;
        let bytes = self.bytes(kind);
        if !(bytes.as_ptr() as usize).is_multiple_of(kind.elt_size_in_bytes()) {
            return Ok(Tensor::f_from_data_size(bytes, &self.shape, kind)?);
        }
        // SAFETY: the bytes lie in the mapping that the Arc keeps alive, they are aligned for the kind, and no
        // layer writes to its weights.
        unsafe { native::tensor_over(bytes.as_ptr(), &self.shape, kind, self.file.clone()) }
    }
}

/// The places that a renaming makes of the names that `wanted` accepts.
fn renamed(rename: Rename, wanted: impl Fn(&str) -> bool) -> impl Fn(&str, &[usize]) -> Vec<TensorPlace> {
    move |name, _| {
        let name = if wanted(name) { rename(name) } else { None };
        name.map(TensorPlace::whole).into_iter().collect()
    }
}

/// "fp16" of `model.fp16.safetensors`, of `model.fp16-00001-of-00002.safetensors` and of
/// `model.safetensors.index.fp16.json`; nothing of other names.
fn variant_of<'a>(name: &'a str, stem: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(stem)?;
    if let Some(variant) = rest.strip_prefix(".safetensors.index.") {
        return variant.strip_suffix(".json");
    }
    let variant = rest.strip_prefix('.')?.strip_suffix(".safetensors")?;
    variant.split('-').next().filter(|variant| !variant.is_empty())
}

fn no_weights(folder: &Path, stem: &str, dotted: &str) -> Error {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names: BTreeSet<String> = names.collect();
    let is_pickle = |name: &&String| [".bin", ".ckpt", ".pt", ".pth"].iter().any(|end| name.ends_with(end));
    let pickles: Vec<String> = names.iter().filter(is_pickle).cloned().collect();
    let variants: BTreeSet<&str> = names.iter().filter_map(|name| variant_of(name, stem)).collect();
    if pickles.is_empty() || !variants.is_empty() {
        let mut reason =
            format!("holds neither {stem}{dotted}.safetensors nor {stem}.safetensors.index{dotted}.json");
        if let Some(variant) = variants.first() {
            reason += &format!(
                "; it has weights of the variant {variant:?}: model.variant = {variant:?} in a job, --variant {variant} on the \
                 command line"
            );
        }
        return Error::NotAModel { folder: folder.to_path_buf(), reason };
    }
    let converter = "diffusers: StableDiffusionPipeline";
    Error::PickleOnly { folder: folder.to_path_buf(), found: pickles.join(", "), converter }
}

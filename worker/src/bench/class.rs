//! Classifies operators: class, shape in words, and amount of work.

use crate::engine::{Operator, TensorShape};

/// Kernels of the engine's own are named so.
pub(super) const OWN: &str = "ringtune::";

/// The classes that a step's time is shared out to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Of 3x3 weights, forward and backward.
    Convolution3x3,
    /// Of 1x1 weights.
    Convolution1x1,
    /// Linear layers, forward and backward, and other products.
    Linear,
    /// Attention, forward.
    AttentionForward,
    /// Attention, backward, which computes the scores again.
    AttentionBackward,
    /// Group and layer norms with what is fused into them.
    Norm,
    /// GEGLU.
    Geglu,
    /// Changes of layout or kind, and copies.
    Layout,
    /// The text encoder, forward and backward.
    TextEncoder,
    /// Other operators.
    Rest,
    /// The time between operators.
    Between,
}

impl Class {
    /// In the order of tables.
    pub const ALL: [Self; 11] = [
        Self::Convolution3x3,
        Self::Convolution1x1,
        Self::Linear,
        Self::AttentionForward,
        Self::AttentionBackward,
        Self::Norm,
        Self::Geglu,
        Self::Layout,
        Self::TextEncoder,
        Self::Rest,
        Self::Between,
    ];

    /// Its name in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convolution3x3 => "convolutions 3x3",
            Self::Convolution1x1 => "convolutions 1x1",
            Self::Linear => "linears",
            Self::AttentionForward => "attention forward",
            Self::AttentionBackward => "attention backward",
            Self::Norm => "norms",
            Self::Geglu => "GEGLU",
            Self::Layout => "layout changes and copies",
            Self::TextEncoder => "text encoder",
            Self::Rest => "rest",
            Self::Between => "between operators",
        }
    }

    /// Whether its FLOP are the step's work, which the roofline is about. The text encoder's are not: in fp32, and 2% of all.
    pub fn is_work(self) -> bool {
        use Class::{AttentionBackward, AttentionForward, Convolution1x1, Convolution3x3, Linear};
        matches!(self, Convolution3x3 | Convolution1x1 | Linear | AttentionForward | AttentionBackward)
    }
}

/// The work of one call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) class: Class,
    /// Distinguishes it within its class; may be empty.
    pub(super) shape: String,
    /// Multiplications and additions.
    pub(super) flop: f64,
    /// Minimal bytes read and written.
    pub(super) bytes: f64,
}

/// Classifies an operator by name and shapes; None: unclassified, but nested operators may be.
pub(super) fn classify(operator: &Operator) -> Option<Work> {
    let name = operator.name.as_str();
    let own = name.strip_prefix(OWN);
    let plain = own.or_else(|| name.strip_prefix("aten::"))?;
    let is_one_of = |names: &[&str]| names.contains(&plain);
    if is_one_of(&["conv2d", "convolution_backward"]) || own.is_some_and(|own| own.starts_with("convolution"))
    {
        return convolution(operator);
    }
    if is_one_of(&["linear", "matmul", "mm", "bmm", "addmm"])
        || own.is_some_and(|own| own.starts_with("linear"))
    {
        return product(operator, plain, own.is_some());
    }
    if plain.contains("attention") {
        return attention(operator, plain, own.is_some());
    }
    let of = |class| Some(Work { class, shape: String::new(), flop: 0.0, bytes: bytes(operator) });
    if plain.contains("group_norm") || plain.contains("layer_norm") {
        return of(Class::Norm);
    }
    if plain.contains("geglu") || plain.starts_with("gelu") {
        return of(Class::Geglu);
    }
    let copies = ["copy_", "clone", "_to_copy", "cat", "to_mkldnn", "constant_pad_nd", "flip"];
    let upsamples = plain.starts_with("upsample_nearest2d");
    if is_one_of(&copies) || upsamples || plain.contains("reorder") || plain.starts_with("pack") {
        return of(Class::Layout);
    }
    None
}

fn tensors(operator: &Operator) -> impl DoubleEndedIterator<Item = &TensorShape> {
    operator.inputs.iter().flatten()
}

/// Of all that goes in and comes out. Our own kernels do not say what comes out: where it is as large as what goes in first, that
/// is added.
fn bytes(operator: &Operator) -> f64 {
    let read: f64 = tensors(operator).map(TensorShape::bytes).sum();
    let written: f64 = operator.outputs.iter().flatten().map(TensorShape::bytes).sum();
    let unsaid = operator.name.starts_with(OWN) && operator.outputs.is_empty();
    let like_first = tensors(operator).next().map_or(0.0, TensorShape::bytes);
    read + if unsaid { like_first } else { written }
}

/// The first tensor with four dimensions is the input (or the gradient of the output), the last one the weights [outputs, inputs,
/// k, k], which our kernels may name by a shape alone.
fn convolution(operator: &Operator) -> Option<Work> {
    let four = || tensors(operator).filter(|shape| shape.sizes.len() == 4);
    let (input, weight) = (four().next()?, four().next_back()?);
    let (&[_, _, height, width], &[outputs, inputs, kernel, _]) = (&input.sizes[..], &weight.sizes[..])
    else {
        return None;
    };
    let backward = operator.name.ends_with("convolution_backward");
    let result = operator.outputs.iter().flatten().next();
    // Positions of the smaller side: each has outputs x inputs x k x k multiplications.
    let per_channel = |shape: &TensorShape| shape.elements() / shape.sizes.get(1).map_or(1.0, |c| *c as f64);
    let positions = match result {
        Some(result) if !backward && result.sizes.len() == 4 => per_channel(result),
        _ => per_channel(input),
    };
    let weights = weight.elements();
    let strided = match result {
        Some(result) => result.sizes.get(2).is_some_and(|rows| *rows != height),
        None => false,
    };
    // Ours says by its name that it makes a quarter of the positions.
    let halves = operator.name.ends_with("convolution_strided");
    let positions = if halves { positions / 4.0 } else { positions };
    let strided = strided || halves || operator.name.ends_with("convolution_transposed");
    let (from, to) = if backward { (outputs, inputs) } else { (inputs, outputs) };
    let class = if kernel == 1 { Class::Convolution1x1 } else { Class::Convolution3x3 };
    let kernel = if kernel == 1 || kernel == 3 { String::new() } else { format!(", {kernel}x{kernel}") };
    let stride = if strided { ", changes the size" } else { "" };
    let element = input.element_bytes as f64;
    let written = positions * to as f64 * element;
    let all: f64 = four().map(TensorShape::bytes).sum();
    Some(Work {
        class,
        shape: format!("{from}->{to} at {height}x{width}{kernel}{stride}"),
        flop: 2.0 * positions * weights,
        // A weight may be named without its bytes.
        bytes: all - weight.bytes() + weights * element + written,
    })
}

/// [.., k] times k x n values, in whatever order. Our own linear layers: input, weights, and what else they read.
fn product(operator: &Operator, plain: &str, own: bool) -> Option<Work> {
    let skipped = usize::from(plain == "addmm");
    let mut operands = tensors(operator).skip(skipped);
    let (left, right) = (operands.next()?, operands.next()?);
    let depth = *left.sizes.last()? as f64;
    let columns = match plain {
        // Weights, of which each is used by each row.
        _ if own => right.elements() / depth,
        "linear" => right.elements() / depth,
        _ => *right.sizes.last()? as f64,
    };
    let rows = left.elements() / depth;
    let element = left.element_bytes as f64;
    let others: f64 = operands.map(TensorShape::bytes).sum();
    Some(Work {
        class: Class::Linear,
        shape: format!("{rows}x{depth}->{columns}"),
        flop: 2.0 * rows * depth * columns,
        bytes: left.bytes() + right.elements() * element + others + rows * columns * element,
    })
}

/// Query, key and value; ours as [batch, tokens, heads, width], and backward with the gradients that are wanted, libtorch's as
/// [batch, heads, tokens, width], and backward with the gradient of the output first.
fn attention(operator: &Operator, plain: &str, own: bool) -> Option<Work> {
    let backward = plain.contains("backward");
    let skipped = usize::from(backward && !own);
    let operands: Vec<&Option<TensorShape>> = operator.inputs.iter().skip(skipped).collect();
    let (query, key) = (operands.first()?.as_ref()?, operands.get(1)?.as_ref()?);
    let (&[batch, a, b, width], &[_, c, d, _]) = (&query.sizes[..], &key.sizes[..]) else { return None };
    let (queries, keys, heads) = if own { (a, c, b) } else { (b, d, a) };
    // Forward: the scores and the values. Backward: the scores again, the gradient of the probabilities, and a product for each
    // gradient.
    let wanted = if own { operands.iter().skip(3).filter(|gradient| gradient.is_some()).count() } else { 3 };
    let products = if backward { 2 + wanted } else { 2 };
    let each = 2.0 * (batch * heads * queries * keys * width) as f64;
    // The output; backward, ours name neither that nor its gradient.
    let unsaid = query.bytes() * if backward && own { 2.0 } else { 1.0 };
    let said: f64 = operands.iter().filter_map(|shape| shape.as_ref()).map(TensorShape::bytes).sum();
    Some(Work {
        class: if backward { Class::AttentionBackward } else { Class::AttentionForward },
        shape: format!("{queries} queries, {keys} keys, {heads}x{width}"),
        flop: each * products as f64,
        bytes: said + unsaid,
    })
}

#[cfg(test)]
#[path = "class_tests.rs"]
mod tests;

//! What an engine recorded of its library's operators, and what the machine can do: for `bench`.

/// All operators of some stretch of time, on all threads, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// What was recorded.
    pub operators: Vec<Operator>,
    /// Operators for which there was no room.
    pub lost: u64,
}

/// One call of an operator, or a named stretch of calls. On one thread they are nested: one lies within another, or beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// As the library calls it, such as `aten::copy_`; kernels of the engine's own begin with `ringtune::`.
    pub name: String,
    /// What kind of call it is.
    pub scope: OperatorScope,
    /// The thread, by some number.
    pub thread: u64,
    /// Nanoseconds since some moment, which is the same for all.
    pub start: u64,
    /// As `start`.
    pub end: u64,
    /// Numbers of the operators of the forward pass, in the order of calls: the next one's at the start and at the end. Of a
    /// backward function, both are the number of the forward operator whose gradient it takes.
    pub sequence: (u64, u64),
    /// Its tensors, in order. What is no tensor has its place too: numbers as a shape without bytes, all else as nothing.
    pub inputs: Vec<Option<TensorShape>>,
    /// What it made, where the library says so.
    pub outputs: Vec<Option<TensorShape>>,
}

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorScope {
    /// An operator.
    Operator,
    /// The gradient of one; operators are within it.
    Backward,
    /// A stretch of the engine's own.
    Stretch,
}

/// The size of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Its dimensions.
    pub sizes: Vec<i64>,
}

/// The stretch that is one training step.
pub const STEP: &str = "ringtune::step";
/// The stretch that is the text encoder's forward pass.
pub const TEXT_ENCODER: &str = "ringtune::text_encoder";

/// What the library and the machine reach on work of one sort alone, with the engine's threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineRates {
    /// FLOP/s of the library's 3x3 convolution of 320 channels on 64x64 positions.
    pub convolution: f64,
    /// FLOP/s of the library's product of square matrices.
    pub product: f64,
    /// Bytes/s, read and written, of a copy that no cache holds.
    pub copy: f64,
}

impl TensorShape {
    /// Elements.
    pub fn elements(&self) -> f64 {
        self.sizes.iter().map(|size| *size as f64).product()
    }

    /// Bytes.
    pub fn bytes(&self) -> f64 {
        self.elements() * self.element_bytes as f64
    }
}

//! The known callables of a pickle. Pure: values in, a value out.

use super::{Global, Heap, Id, MOST_DIMENSIONS, Storage, Tensor, Value, stop::Stop};

/// BINPERSID: `("storage", kind, key, place, numbers)` stands for an entry of the file.
pub(super) fn load<'a>(heap: &Heap<'a>, address: Id) -> Result<Value<'a>, Stop> {
    if let Value::Tuple(parts) = heap.get(address)
        && let [storage, kind, key, place, numbers] = parts[..]
        && let (
            Value::Text("storage"),
            Value::Global(Global::Storage(kind)),
            Value::Text(key),
            Value::Text(_),
        ) = (heap.get(storage), heap.get(kind), heap.get(key), heap.get(place))
        && let Some(numbers) = size(heap, numbers)
    {
        return Ok(Value::Storage(Storage { kind: *kind, key, numbers }));
    }
    Err("it refers to something else than a storage".into())
}

/// REDUCE.
pub(super) fn call<'a>(heap: &Heap<'a>, function: Id, arguments: Id) -> Result<Value<'a>, Stop> {
    let (Value::Global(function), Value::Tuple(arguments)) = (heap.get(function), heap.get(arguments)) else {
        return Err("it calls something that is not a known name".into());
    };
    match (function, &arguments[..]) {
        (Global::RebuildTensor, [storage, offset, shape, stride, _requires_grad, _hooks]) => {
            tensor(heap, [*storage, *offset, *shape, *stride])
        }
        (Global::RebuildParameter, [data, _requires_grad, _hooks]) => match heap.get(*data) {
            Value::Tensor(tensor) => Ok(Value::Tensor(tensor.clone())),
            _ => Err("a parameter is not a tensor".into()),
        },
        (Global::OrderedDict, []) => Ok(Value::Dict(Vec::new())),
        // Only in what a ParameterDict keeps beside its parameters.
        (Global::Set, [_]) => Ok(Value::Plain),
        _ => Err(Stop::Problem(format!("it calls {function:?} with {} arguments", arguments.len()))),
    }
}

/// NEWOBJ.
pub(super) fn new_object<'a>(heap: &Heap<'a>, class: Id, arguments: Id) -> Result<Value<'a>, Stop> {
    match (heap.get(class), heap.get(arguments)) {
        (Value::Global(Global::ParameterDict), Value::Tuple(arguments)) if arguments.is_empty() => {
            Ok(Value::ParameterDict(None))
        }
        _ => Err("it makes something else than a ParameterDict".into()),
    }
}

fn tensor<'a>(heap: &Heap<'a>, [storage, offset, shape, stride]: [Id; 4]) -> Result<Value<'a>, Stop> {
    let Value::Storage(storage) = heap.get(storage) else { return Err("a tensor has no storage".into()) };
    let offset = size(heap, offset).ok_or("a tensor's offset is not a number")?;
    let (shape, stride) = (sizes(heap, shape)?, sizes(heap, stride)?);
    if shape.len() != stride.len() {
        return Err("a tensor has more sizes than strides, or fewer".into());
    }
    Ok(Value::Tensor(Tensor { storage: storage.clone(), offset, shape, stride }))
}

fn sizes(heap: &Heap<'_>, id: Id) -> Result<Vec<usize>, Stop> {
    let Value::Tuple(parts) = heap.get(id) else { return Err("a tensor's shape is not a tuple".into()) };
    if parts.len() > MOST_DIMENSIONS {
        return Err(Stop::Problem(format!("a tensor has {} dimensions", parts.len())));
    }
    let sizes: Option<Vec<usize>> = parts.iter().map(|part| size(heap, *part)).collect();
    sizes.ok_or_else(|| "a tensor's shape has something else than sizes".into())
}

fn size(heap: &Heap<'_>, id: Id) -> Option<usize> {
    match heap.get(id) {
        Value::Integer(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

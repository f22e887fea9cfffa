//! The stack machine.

use std::collections::BTreeMap;

use super::{
    Global, Heap, Id, MOST_BYTES, MOST_MARKS, MOST_REMEMBERED, MOST_STACKED, MOST_VALUES, Value, calls,
    stop::Stop,
};
use crate::embedding::EmbeddingError;

/// Runs a pickle and returns its values, and which of them it is.
///
/// # Errors
/// An opcode, a name or a combination of them that torch.save does not write for an embedding.
pub(in crate::embedding) fn run(code: &[u8]) -> Result<(Heap<'_>, Id), EmbeddingError> {
    if code.len() > MOST_BYTES {
        let problem = format!("it has {} bytes, more than {MOST_BYTES}", code.len());
        return Err(EmbeddingError::Pickle { at: 0, problem });
    }
    let mut machine = Machine {
        code,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
        heap: Heap::default(),
    };
    loop {
        let began = machine.at;
        match machine.step() {
            Ok(None) => (),
            Ok(Some(result)) => return Ok((machine.heap, result)),
            Err(Stop::Code(error)) => return Err(error),
            Err(Stop::Problem(problem)) => return Err(EmbeddingError::Pickle { at: began, problem }),
        }
    }
}

struct Machine<'a> {
    code: &'a [u8],
    /// The next byte.
    at: usize,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: BTreeMap<usize, Id>,
    heap: Heap<'a>,
}

impl<'a> Machine<'a> {
    /// Takes one opcode; the result, if it was the last.
    fn step(&mut self) -> Result<Option<Id>, Stop> {
        let [opcode] = self.array()?;
        match opcode {
            // PROTO
            0x80 => match self.array()? {
                [2] => (),
                [other] => {
                    return Err(Stop::Problem(format!("it has protocol {other}; torch.save writes 2")));
                }
            },
            // STOP
            b'.' => return Ok(Some(self.pop()?)),
            // MARK
            b'(' if self.marks.len() >= MOST_MARKS => return Err("it is nested too deep".into()),
            b'(' => self.marks.push(self.stack.len()),
            // NONE, NEWTRUE, NEWFALSE
            b'N' | 0x88 | 0x89 => self.push(Value::Plain)?,
            // BINFLOAT
            b'G' => {
                self.bytes(8)?;
                self.push(Value::Plain)?;
            }
            // BININT1, BININT2, BININT, LONG1
            b'K' => self.integer(1)?,
            b'M' => self.integer(2)?,
            b'J' => {
                let number = i64::from(i32::from_le_bytes(self.array()?));
                self.push(Value::Integer(number))?;
            }
            0x8a => self.long()?,
            // BINUNICODE
            b'X' => {
                let length = self.length()?;
                let text = std::str::from_utf8(self.bytes(length)?).map_err(|_| "a text is not UTF-8")?;
                self.push(Value::Text(text))?;
            }
            // EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE
            b')' => self.push(Value::Tuple(Vec::new()))?,
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let start = self.floor_checked(count)?;
                let items = self.stack.split_off(start);
                self.push(Value::Tuple(items))?;
            }
            b't' => {
                let items = self.since_mark()?;
                self.push(Value::Tuple(items))?;
            }
            // EMPTY_LIST, APPEND, APPENDS
            b']' => self.push(Value::List(Vec::new()))?,
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(items)?;
            }
            // EMPTY_DICT, SETITEM, SETITEMS
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(&items)?;
            }
            // BINPUT, LONG_BINPUT, BINGET, LONG_BINGET
            b'q' | b'r' => {
                let number = self.memo_number(opcode == b'r')?;
                let top = self.top()?;
                if number >= MOST_REMEMBERED {
                    return Err("it remembers too much".into());
                }
                self.memo.insert(number, top);
            }
            b'h' | b'j' => {
                let number = self.memo_number(opcode == b'j')?;
                let known = self.memo.get(&number).copied().ok_or("it recalls what it did not remember")?;
                self.stack_up(known)?;
            }
            // GLOBAL
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = Global::named(module, name).map_err(Stop::Code)?;
                self.push(Value::Global(global))?;
            }
            // BINPERSID, REDUCE, NEWOBJ, BUILD: what would load, call and fill in objects.
            b'Q' => {
                let address = self.pop()?;
                self.push(calls::load(&self.heap, address)?)?;
            }
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.push(calls::call(&self.heap, function, arguments)?)?;
            }
            0x81 => {
                let (arguments, class) = (self.pop()?, self.pop()?);
                self.push(calls::new_object(&self.heap, class, arguments)?)?;
            }
            b'b' => {
                let (state, object) = (self.pop()?, self.top()?);
                match self.heap.values.get_mut(object.0) {
                    Some(Value::ParameterDict(own)) => *own = Some(state),
                    _ => return Err("it fills in something else than a ParameterDict".into()),
                }
            }
            // Other opcodes that call; named, so that the file is not taken for a damaged one.
            b'i' | b'o' | 0x92 | 0x93 | 0x82..=0x84 => {
                let problem =
                    format!("opcode {opcode:#04x} calls what a name stands for; torch.save does not use it");
                return Err(Stop::Problem(problem));
            }
            other => {
                return Err(Stop::Problem(format!("opcode {other:#04x} is none that torch.save writes")));
            }
        }
        Ok(None)
    }

    // Operands.

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.code.get(self.at..end)).ok_or("it ends too early")?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let taken = self.bytes(N)?;
        taken.try_into().map_err(|_| Stop::from("it ends too early"))
    }

    fn length(&mut self) -> Result<usize, Stop> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| Stop::from("a length is too large"))
    }

    fn memo_number(&mut self, long: bool) -> Result<usize, Stop> {
        if long { self.length() } else { Ok(usize::from(self.array::<1>()?[0])) }
    }

    fn integer(&mut self, bytes: usize) -> Result<(), Stop> {
        let number = self.bytes(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte));
        self.push(Value::Integer(number))
    }

    /// LONG1: two's complement in as many bytes as it needs.
    fn long(&mut self) -> Result<(), Stop> {
        let [length] = self.array()?;
        let bytes = self.bytes(usize::from(length))?;
        if bytes.len() > 8 {
            return Err("a whole number is too large".into());
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let start = if negative { -1 } else { 0 };
        let number = bytes.iter().rev().fold(start, |number: i64, byte| number << 8 | i64::from(*byte));
        self.push(Value::Integer(number))
    }

    /// Up to the end of the line, which is not a part of it.
    fn line(&mut self) -> Result<&'a str, Stop> {
        let rest = self.code.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or("a name has no end")?;
        let line = std::str::from_utf8(self.bytes(length)?).map_err(|_| "a name is not UTF-8")?;
        self.at += 1;
        Ok(line)
    }

    // The stack. Nothing below the newest mark is taken from it but by what ends that mark.

    fn push(&mut self, value: Value<'a>) -> Result<(), Stop> {
        let id = Id(self.heap.values.len());
        if id.0 >= MOST_VALUES {
            return Err("it makes too many values".into());
        }
        self.heap.values.push(value);
        self.stack_up(id)
    }

    fn stack_up(&mut self, id: Id) -> Result<(), Stop> {
        if self.stack.len() >= MOST_STACKED {
            return Err("its stack is too high".into());
        }
        self.stack.push(id);
        Ok(())
    }

    /// The height above which `count` values lie, all of them above the newest mark.
    fn floor_checked(&self, count: usize) -> Result<usize, Stop> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|start| *start >= floor);
        start.ok_or_else(|| "its stack is empty".into())
    }

    fn top(&self) -> Result<Id, Stop> {
        let at = self.floor_checked(1)?;
        self.stack.get(at).copied().ok_or_else(|| "its stack is empty".into())
    }

    fn pop(&mut self) -> Result<Id, Stop> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, Stop> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        // No opcode takes values from below a mark: the stack is at least as high.
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), Stop> {
        let list = self.top()?;
        match self.heap.values.get_mut(list.0) {
            Some(Value::List(known)) => known.extend(items),
            _ => return Err("it appends to something else than a list".into()),
        }
        Ok(())
    }

    /// `items`: names and values by turns.
    fn set(&mut self, items: &[Id]) -> Result<(), Stop> {
        let dict = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match self.heap.values.get_mut(dict.0) {
            Some(Value::Dict(known)) if rest.is_empty() => {
                known.extend(pairs.iter().map(|[key, value]| (*key, *value)))
            }
            Some(Value::Dict(_)) => return Err("a name has no value".into()),
            _ => return Err("it sets an item of something else than a dictionary".into()),
        }
        Ok(())
    }
}

//! The strings of a column, row by row: none, one, or a list of them in each.

use std::fs::File;

use parquet::{
    column::reader::ColumnReaderImpl,
    data_type::{ByteArray, ByteArrayType},
    file::reader::SerializedFileReader,
};

use crate::columns::{self, Column, guarded};

/// The strings of a column in a row group.
pub(crate) struct Cells {
    reader: ColumnReaderImpl<ByteArrayType>,
    column: Column,
}

impl Cells {
    /// See [`columns::texts`].
    pub(crate) fn new(
        reader: &SerializedFileReader<File>,
        group: usize,
        column: Column,
        most_values: u64,
    ) -> Result<Self, String> {
        Ok(Self { reader: columns::texts(reader, group, column, most_values)?, column })
    }

    /// Those of the next rows, at most `most`: none, one, or those of a list.
    pub(crate) fn next(&mut self, most: usize) -> Result<Vec<Vec<ByteArray>>, String> {
        let Self { reader, column } = self;
        let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let (optional, repeated) = (column.definition > 0, column.repeated);
        let levels = (optional.then_some(&mut definitions), repeated.then_some(&mut repetitions));
        guarded(|| reader.read_records(most, levels.0, levels.1, &mut values))?;
        if !optional {
            return Ok(values.into_iter().map(|value| vec![value]).collect());
        }
        let (mut values, mut rows) = (values.into_iter(), Vec::new());
        for (place, definition) in definitions.iter().enumerate() {
            // Whatever continues a list has a level of repetition.
            if repetitions.get(place).is_none_or(|level| *level == 0) {
                rows.push(Vec::new());
            }
            let value = (*definition == column.definition).then(|| values.next()).flatten();
            if let Some(row) = rows.last_mut() {
                row.extend(value);
            }
        }
        Ok(rows)
    }

    /// Passes by so many rows. Says how many there were.
    pub(crate) fn skip(&mut self, rows: usize) -> Result<usize, String> {
        guarded(|| self.reader.skip_records(rows))
    }
}

//! The pages of a column, with a look at what the library would take on trust: a list of lengths in a delta encoding says how many it
//! has, up to 2^63, and the library makes room for all of them before it reads one.

use parquet::{
    basic::Encoding,
    column::page::{Page, PageMetadata, PageReader},
    errors::ParquetError,
};

/// Values of one page whose lengths are delta-encoded: four or eight bytes each are held at once. Writers put some 20,000 in one.
const MOST_PAGE_VALUES: u32 = 1 << 23;

/// Pages that were looked at.
pub(super) struct Pages {
    pages: Box<dyn PageReader>,
    /// Kinds of levels that a page begins with: one where there may be nulls, two where there are lists.
    levels: usize,
    /// Values that may still come: a few bytes can stand for billions of one value.
    left: u64,
}

impl Pages {
    pub(super) fn new(pages: Box<dyn PageReader>, levels: usize, most_values: u64) -> Self {
        Self { pages, levels, left: most_values }
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            let left = self.left.checked_sub(u64::from(page.num_values()));
            self.left =
                left.ok_or_else(|| ParquetError::General("it has more values than it may".to_owned()))?;
            check(page, self.levels).map_err(ParquetError::General)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.pages.at_record_boundary()
    }
}

/// Checks that the lists of a page have no more numbers than the page has values. The error is for users.
fn check(page: &Page, levels: usize) -> Result<(), String> {
    let lists = match page.encoding() {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
        // Lengths of shared prefixes, and of suffixes.
        Encoding::DELTA_BYTE_ARRAY => 2,
        _ => return Ok(()),
    };
    if page.num_values() > MOST_PAGE_VALUES {
        return Err(format!("a page has {} values; allowed: {MOST_PAGE_VALUES}", page.num_values()));
    }
    let mut values = behind_levels(page, levels).ok_or("a page ends within its levels")?;
    for _ in 0..lists {
        values = behind_list(values, u64::from(page.num_values()))?;
    }
    Ok(())
}

/// The bytes behind a page's levels. None: it ends before.
fn behind_levels(page: &Page, levels: usize) -> Option<&[u8]> {
    let mut buffer: &[u8] = page.buffer();
    let bytes = match page {
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len)
        }
        Page::DataPage { def_level_encoding: Encoding::RLE, .. } => {
            for _ in 0..levels {
                let bytes = u32::from_le_bytes(*buffer.first_chunk()?);
                buffer = buffer.get(usize::try_from(bytes).ok()?.checked_add(4)?..)?;
            }
            0
        }
        _ if levels == 0 => 0,
        // A bit for each; lists in such pages are older than any list of lengths.
        _ if levels == 1 => u64::from(page.num_values()).div_ceil(8),
        _ => return None,
    };
    buffer.get(usize::try_from(bytes).ok()?..)
}

/// The bytes behind a list of numbers in the encoding DELTA_BINARY_PACKED, which has at most `most` of them.
/// Source: github.com/apache/parquet-format, Encodings.md, "Delta Encoding".
fn behind_list(mut data: &[u8], most: u64) -> Result<&[u8], String> {
    let ends = || "a list of lengths ends within itself".to_owned();
    let mut header = [0; 4];
    for number in &mut header {
        (*number, data) = variable(data).ok_or_else(ends)?;
    }
    let [block, parts, count, _first] = header;
    if count > most {
        return Err(format!("a list says that it has {count} lengths, its page has {most} values"));
    }
    let parts = usize::try_from(parts).ok().filter(|parts| *parts > 0).ok_or_else(ends)?;
    let each = block / parts as u64;
    if each == 0 {
        return Err(ends());
    }
    let mut left = count.saturating_sub(1);
    while left > 0 {
        (_, data) = variable(data).ok_or_else(ends)?;
        let (widths, rest) = data.split_at_checked(parts).ok_or_else(ends)?;
        data = rest;
        for width in widths {
            if left == 0 {
                break;
            }
            let bytes = each.checked_mul(u64::from(*width)).map(|bits| bits / 8).ok_or_else(ends)?;
            data = usize::try_from(bytes).ok().and_then(|bytes| data.get(bytes..)).ok_or_else(ends)?;
            left = left.saturating_sub(each);
        }
    }
    Ok(data)
}

/// A number of up to 64 bits, seven to a byte, and what comes behind it.
fn variable(data: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (place, byte) in data.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * place).min(63);
        if byte & 0x80 == 0 {
            return Some((number, &data[place + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header: numbers in a block, parts of a block, numbers in all, the first one.
    fn header(count: u64) -> Vec<u8> {
        let mut bytes = vec![0x80, 0x01, 0x04];
        let mut left = count;
        while left > 0x7f {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.extend([left as u8, 0x0a]);
        bytes
    }

    #[test]
    fn a_list_ends_where_its_blocks_do() {
        // 1. One number has no block; two have one, whose first part of 32 numbers has 3 bits for each.
        assert_eq!(behind_list(&[header(1), vec![7, 8]].concat(), 1), Ok(&[7, 8][..]));
        let block = [&[0x02, 3, 9, 9, 9][..], &[0xff; 12]].concat();
        assert_eq!(behind_list(&[header(2), block.clone(), vec![7, 8]].concat(), 20), Ok(&[7, 8][..]));
        // 2. 130 numbers have two blocks, of which the second has one part.
        let whole = [&[0x02, 1, 0, 2, 0][..], &[0xff; 12]].concat();
        let last = [&[0x02, 1, 1, 1, 1][..], &[0xff; 4]].concat();
        assert_eq!(behind_list(&[header(130), whole, last, vec![5]].concat(), 130), Ok(&[5][..]));
        // 3. What is cut short, anywhere.
        let list = [header(2), block].concat();
        for length in 0..list.len() {
            assert!(behind_list(&list[..length], 20).is_err(), "{length}");
        }
    }

    #[test]
    fn what_a_list_says_of_itself_is_not_believed() {
        let huge = behind_list(&header(1 << 40), 20).unwrap_err();
        assert_eq!(huge, "a list says that it has 1099511627776 lengths, its page has 20 values");
        assert!(behind_list(&[0xff; 40], u64::MAX).is_err());
        // Blocks of no numbers, and of no parts.
        assert!(behind_list(&[0, 4, 2, 0, 0, 0, 0, 0, 0, 0], 20).is_err());
        assert!(behind_list(&[0x80, 0x01, 0, 2, 0, 0, 0, 0, 0, 0], 20).is_err());
    }

    #[test]
    fn levels_are_passed_by_in_all_their_forms() {
        let page = |def_level_encoding, buf: Vec<u8>| Page::DataPage {
            buf: buf.into(),
            num_values: 9,
            encoding: Encoding::DELTA_LENGTH_BYTE_ARRAY,
            def_level_encoding,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let levels = [2, 0, 0, 0, 18, 1];
        let told = page(Encoding::RLE, [&levels[..], &header(9 << 30)].concat());
        assert!(check(&told, 1).unwrap_err().contains("9663676416 lengths"));
        assert!(check(&page(Encoding::RLE, [&levels[..], &header(1)].concat()), 1).is_ok());
        assert!(check(&page(Encoding::RLE, header(1)), 0).is_ok());
        let both = page(Encoding::RLE, [&levels[..], &levels, &header(1)].concat());
        assert!(check(&both, 2).is_ok() && check(&both, 1).is_err());
        #[allow(deprecated, reason = "old files have it")]
        let bits = page(Encoding::BIT_PACKED, [&[0xff, 0x01][..], &header(1)].concat());
        assert!(check(&bits, 1).is_ok());
        assert_eq!(
            check(&page(Encoding::RLE, vec![9, 0, 0]), 1).unwrap_err(),
            "a page ends within its levels"
        );
    }
}

//! Limits of inputs. No claim of a file is believed beyond these.

/// Bytes of one document, and of one line of a .jsonl file: each thread holds one with its tokens in memory, which are at
/// most two bytes for each byte of it. The longest document of OpenWebText has 100 KB, the longest book a few MB.
pub(crate) const LONGEST_DOCUMENT: u64 = 256 << 20;
/// Documents of one run: four bytes number one. OpenWebText has 8 million.
pub(crate) const MOST_DOCUMENTS: u64 = u32::MAX as u64;
/// Files of one run.
pub(crate) const MOST_FILES: usize = 1_000_000;
/// Folders within folders.
pub(crate) const DEEPEST_FOLDER: usize = 64;
/// Bytes of text of one row group of a .parquet file: it is one thread's work, and is begun again when the run is stopped
/// in the middle of it. Writers make groups of some MB up to 1 GB.
pub(crate) const LARGEST_ROW_GROUP: u64 = 8 << 30;
/// Bytes of the part of a .parquet file that lists its row groups.
pub(crate) const LARGEST_FOOTER: u64 = 256 << 20;
/// Bytes of text that one part of the inputs is cut to: what is lost by a stop is less than this for each thread, and a
/// thread with nothing to do waits no longer than for this.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;
/// Text files in one part: each costs an opening.
pub(crate) const CHUNK_FILES: usize = 4096;
/// Bytes of tokens that are put in order at once. A run's memory is these, 12 bytes for each document, and what its threads
/// hold.
pub(crate) const WINDOW_BYTES: usize = 512 << 20;
/// Bytes of a tokenizer's file: GPT-2's largest has 1.4 MB.
pub(crate) const LARGEST_TOKENIZER_FILE: u64 = 64 << 20;
/// Broken documents that are told of one by one; all are counted.
pub(crate) const MOST_REMARKS: usize = 20;

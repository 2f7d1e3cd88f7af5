//! The index as a file, so that a start need not scan the store.
//!
//! ```text
//! header = magic (8) | format version u32 | revision i64 | compacted i64 | number of keys u64 | crc32c u32
//! block  = length u32 | crc32c u32 | entries        the last block is empty and ends the dump
//! entry  = shared length (varint) | suffix length (varint) | suffix | packed state
//! ```
//!
//! Numbers are little-endian. An entry shares that many bytes with the key before it in its block. The checksum of a
//! block covers its number, its length and its entries, so blocks cannot move. A load trusts no length: it takes at
//! most one block into memory before its checksum is proven, and refuses what is out of order, miscounted or followed
//! by more. A dump is a copy: whoever is refused one builds the index from the store.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::ControlFlow;

use super::bulk::{KeyIndexBuilder, OutOfOrder};
use super::key_order::common_prefix_len;
use super::varint;
use super::{KeyIndex, KeyState};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::revision::Revision;

const MAGIC: [u8; 8] = *b"kuorumki";

/// Grows with every change of the format. A dump of another version is refused.
const FORMAT_VERSION: u32 = 1;

const HEADER_BYTES: usize = 8 + 4 + 8 + 8 + 8 + 4;
const BLOCK_HEADER_BYTES: usize = 4 + 4;

/// A block is written once it is this long: some thousand keys, so that its header costs nothing.
const BLOCK_BYTES: usize = 64 << 10;

/// No block is longer. Far above [`BLOCK_BYTES`] and the largest key the store takes (60 KiB) together.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// What a dump says of the store it was taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DumpHeader {
    /// The store's revision when the dump was taken: the index holds every change up to it and none after.
    pub(crate) revision: Revision,
    /// The store's compact revision at that time.
    pub(crate) compacted: Revision,
}

impl KeyIndex {
    /// Writes the index to `w`. The caller flushes and syncs.
    pub(crate) fn dump(&self, w: &mut impl Write, header: &DumpHeader) -> io::Result<()> {
        w.write_all(&encode_header(header, self.len()))?;
        let mut blocks = BlockWriter::new(w);
        let mut outcome = Ok(());
        self.visit(KeyRange::ALL, |key, state| {
            outcome = blocks.push(key, state);
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        outcome?;
        blocks.finish()
    }

    /// Reads a dump, which must end where `r` ends.
    pub(crate) fn load(r: &mut impl Read) -> Result<(DumpHeader, KeyIndex), DumpError> {
        let mut bytes = [0; HEADER_BYTES];
        read_whole(r, &mut bytes)?;
        let (header, keys) = decode_header(&bytes)?;
        let mut builder = KeyIndexBuilder::new();
        let mut block = Vec::new();
        let mut loaded = 0;
        for number in 0.. {
            read_block(r, number, &mut block)?;
            if block.is_empty() {
                break;
            }
            loaded += load_block(&block, number, &mut builder)?;
        }
        if loaded != keys {
            return Err(DumpError::Count { announced: keys, found: loaded });
        }
        if r.take(1).read_to_end(&mut block)? > 0 {
            return Err(DumpError::Trailing);
        }
        Ok((header, builder.finish()))
    }
}

fn encode_header(header: &DumpHeader, keys: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&header.revision.0.to_le_bytes());
    bytes[20..28].copy_from_slice(&header.compacted.0.to_le_bytes());
    bytes[28..36].copy_from_slice(&(keys as u64).to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..36]);
    bytes[36..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<(DumpHeader, u64), DumpError> {
    if bytes[..8] != MAGIC {
        return Err(DumpError::NotADump);
    }
    let version = u32::from_le_bytes(field(bytes, 8));
    if version != FORMAT_VERSION {
        return Err(DumpError::Version(version));
    }
    if crc32c::crc32c(&bytes[..36]) != u32::from_le_bytes(field(bytes, 36)) {
        return Err(DumpError::HeaderChecksum);
    }
    let header = DumpHeader {
        revision: Revision(i64::from_le_bytes(field(bytes, 12))),
        compacted: Revision(i64::from_le_bytes(field(bytes, 20))),
    };
    Ok((header, u64::from_le_bytes(field(bytes, 28))))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("a header holds all its fields")
}

fn block_checksum(number: u64, len: u32, entries: &[u8]) -> u32 {
    let checksum = crc32c::crc32c(&number.to_le_bytes());
    let checksum = crc32c::crc32c_append(checksum, &len.to_le_bytes());
    crc32c::crc32c_append(checksum, entries)
}

struct BlockWriter<'a, W> {
    out: &'a mut W,
    number: u64,
    entries: Vec<u8>,
    last_key: Vec<u8>,
}

impl<'a, W: Write> BlockWriter<'a, W> {
    fn new(out: &'a mut W) -> Self {
        BlockWriter { out, number: 0, entries: Vec::new(), last_key: Vec::new() }
    }

    fn push(&mut self, key: &[u8], state: &KeyState) -> io::Result<()> {
        let shared = common_prefix_len(&self.last_key, key);
        varint::push(&mut self.entries, shared);
        varint::push(&mut self.entries, key.len() - shared);
        self.entries.extend_from_slice(&key[shared..]);
        self.entries.extend_from_slice(state.pack().as_slice());
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        if self.entries.len() < BLOCK_BYTES {
            return Ok(());
        }
        self.write_block()
    }

    fn finish(mut self) -> io::Result<()> {
        if !self.entries.is_empty() {
            self.write_block()?;
        }
        self.write_block()
    }

    fn write_block(&mut self) -> io::Result<()> {
        let len = u32::try_from(self.entries.len()).ok().filter(|&len| len as usize <= BLOCK_BYTES_MAX);
        let len = len.ok_or_else(|| {
            let problem = format!("a key of {} bytes does not fit a block", self.last_key.len());
            io::Error::new(ErrorKind::InvalidInput, problem)
        })?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&block_checksum(self.number, len, &self.entries).to_le_bytes())?;
        self.out.write_all(&self.entries)?;
        self.number += 1;
        self.entries.clear();
        self.last_key.clear();
        Ok(())
    }
}

/// Reads block `number` into `block` and proves its checksum.
fn read_block(r: &mut impl Read, number: u64, block: &mut Vec<u8>) -> Result<(), DumpError> {
    let mut header = [0; BLOCK_HEADER_BYTES];
    read_whole(r, &mut header)?;
    let len = u32::from_le_bytes(field(&header, 0));
    if len as usize > BLOCK_BYTES_MAX {
        return Err(DumpError::BlockTooLong { block: number, len });
    }
    block.resize(len as usize, 0);
    read_whole(r, block)?;
    if block_checksum(number, len, block) != u32::from_le_bytes(field(&header, 4)) {
        return Err(DumpError::BlockChecksum { block: number });
    }
    Ok(())
}

/// Adds the entries of a block to `builder` and returns how many there were.
fn load_block(block: &[u8], number: u64, builder: &mut KeyIndexBuilder) -> Result<u64, DumpError> {
    let malformed = |at| DumpError::Malformed { block: number, at };
    let (mut at, mut keys) = (0, 0);
    let mut key = Vec::new();
    while at < block.len() {
        let start = at;
        let state = read_entry(block, &mut at, &mut key).ok_or_else(|| malformed(start))?;
        let pushed = builder.push(&key, state);
        pushed.map_err(|OutOfOrder { .. }| DumpError::OutOfOrder { block: number, at: start })?;
        keys += 1;
    }
    Ok(keys)
}

/// Reads the entry at `*at`, makes its key of the one before it and moves `*at` behind it.
fn read_entry(block: &[u8], at: &mut usize, key: &mut Vec<u8>) -> Option<KeyState> {
    let shared = usize::try_from(varint::read(block, at)?).ok()?;
    let suffix_len = usize::try_from(varint::read(block, at)?).ok()?;
    let suffix = block.get(*at..)?.get(..suffix_len)?;
    if shared > key.len() {
        return None;
    }
    key.truncate(shared);
    key.extend_from_slice(suffix);
    *at += suffix_len;
    KeyState::unpack(block, at)
}

fn read_whole(r: &mut impl Read, bytes: &mut [u8]) -> Result<(), DumpError> {
    r.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => DumpError::Truncated,
        _ => DumpError::Io(error),
    })
}

/// Why a dump is not usable.
#[derive(Debug)]
pub(crate) enum DumpError {
    Io(io::Error),
    NotADump,
    Version(u32),
    Truncated,
    HeaderChecksum,
    BlockTooLong { block: u64, len: u32 },
    BlockChecksum { block: u64 },
    Malformed { block: u64, at: usize },
    OutOfOrder { block: u64, at: usize },
    Count { announced: u64, found: u64 },
    Trailing,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Io(error) => write!(f, "reading the index dump: {error}"),
            DumpError::NotADump => write!(f, "the file is not an index dump"),
            DumpError::Version(version) => {
                write!(f, "index dump of format version {version}, this build reads {FORMAT_VERSION}")
            }
            DumpError::Truncated => write!(f, "the index dump ends too soon"),
            DumpError::HeaderChecksum => write!(f, "the header of the index dump is damaged"),
            DumpError::BlockTooLong { block, len } => {
                write!(f, "block {block} of the index dump claims {len} bytes, the most is {BLOCK_BYTES_MAX}")
            }
            DumpError::BlockChecksum { block } => {
                write!(f, "block {block} of the index dump is damaged")
            }
            DumpError::Malformed { block, at } => {
                write!(f, "block {block} of the index dump holds no entry at byte {at}")
            }
            DumpError::OutOfOrder { block, at } => {
                write!(f, "block {block} of the index dump has a key out of order at byte {at}")
            }
            DumpError::Count { announced, found } => {
                write!(f, "the index dump announces {announced} keys and holds {found}")
            }
            DumpError::Trailing => write!(f, "the index dump is followed by more bytes"),
        }
    }
}

impl std::error::Error for DumpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DumpError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> Self {
        DumpError::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mvcc::revision::ChangeId;

    const HEADER: DumpHeader = DumpHeader { revision: Revision(907), compacted: Revision(12) };

    fn state(main: i64) -> KeyState {
        let modified = ChangeId { main: Revision(main), sub: 0 };
        KeyState { modified, created: Revision(2), version: 3, lease: main % 2, row_bytes: 90 }
    }

    fn index(keys: i64) -> KeyIndex {
        KeyIndex::bulk_build((0..keys).map(|n| (format!("/registry/pods/{n:08}"), state(n))))
    }

    fn dump(index: &KeyIndex) -> Vec<u8> {
        let mut bytes = Vec::new();
        index.dump(&mut bytes, &HEADER).unwrap();
        bytes
    }

    fn load_error(bytes: &[u8]) -> DumpError {
        match KeyIndex::load(&mut &bytes[..]) {
            Ok((_, index)) => panic!("loaded {} keys", index.len()),
            Err(error) => error,
        }
    }

    fn contents(index: &KeyIndex) -> Vec<(Vec<u8>, KeyState)> {
        let mut contents = Vec::new();
        index.visit(KeyRange::ALL, |key, state| {
            contents.push((key.to_vec(), *state));
            ControlFlow::Continue(())
        });
        contents
    }

    /// A dump with these blocks of entries, correct in all but what the entries say.
    fn crafted(keys: usize, blocks: &[&[u8]]) -> Vec<u8> {
        let mut bytes = encode_header(&HEADER, keys).to_vec();
        let mut writer = BlockWriter::new(&mut bytes);
        for block in blocks {
            writer.entries.extend_from_slice(block);
            writer.write_block().unwrap();
        }
        writer.finish().unwrap();
        bytes
    }

    fn entry(shared: usize, suffix_len: usize, suffix: &[u8]) -> Vec<u8> {
        let mut entry = Vec::new();
        varint::push(&mut entry, shared);
        varint::push(&mut entry, suffix_len);
        entry.extend_from_slice(suffix);
        entry.extend_from_slice(state(7).pack().as_slice());
        entry
    }

    #[test]
    fn dump_and_load_give_the_same_index() {
        for keys in [0, 1, 2, 30_000] {
            let index = index(keys);
            let (header, loaded) = KeyIndex::load(&mut dump(&index).as_slice()).unwrap();
            loaded.check();
            assert_eq!((header, loaded.len()), (HEADER, index.len()));
            assert!(contents(&loaded) == contents(&index));
        }
    }

    #[test]
    fn keys_of_60_kib_survive_a_dump() {
        let keys = (0..5).map(|n| ([vec![b'k'; 60 << 10], vec![n]].concat(), state(9)));
        let index = KeyIndex::bulk_build(keys);
        let (_, loaded) = KeyIndex::load(&mut dump(&index).as_slice()).unwrap();
        assert!(contents(&loaded) == contents(&index));
    }

    #[test]
    fn key_larger_than_a_block_is_refused_when_dumping() {
        let mut index = KeyIndex::new();
        index.insert(&vec![0; BLOCK_BYTES_MAX], state(2));
        let error = index.dump(&mut Vec::new(), &HEADER).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn any_damaged_byte_is_refused() {
        let bytes = dump(&index(12));
        for at in 0..bytes.len() {
            for flip in 1..=255 {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                load_error(&damaged);
            }
        }
    }

    #[test]
    fn any_truncation_and_any_addition_is_refused() {
        let mut bytes = dump(&index(12));
        for end in 0..bytes.len() {
            assert!(matches!(load_error(&bytes[..end]), DumpError::Truncated), "at {end}");
        }
        bytes.push(0);
        assert!(matches!(load_error(&bytes), DumpError::Trailing));
    }

    #[test]
    fn blocks_that_moved_are_refused() {
        let (a, b) = (entry(0, 1, b"a"), entry(0, 1, b"b"));
        assert!(KeyIndex::load(&mut crafted(2, &[&a, &b]).as_slice()).is_ok());
        let mut bytes = crafted(2, &[&a, &b]);
        let block = BLOCK_HEADER_BYTES + a.len();
        bytes[HEADER_BYTES..HEADER_BYTES + 2 * block].rotate_left(block);
        assert!(matches!(load_error(&bytes), DumpError::BlockChecksum { block: 0 }));
    }

    #[test]
    fn entries_that_lie_are_refused() {
        let good = entry(0, 1, b"b");
        let after_good = |entry: Vec<u8>| [good.clone(), entry].concat();
        let malformed = [
            after_good(entry(2, 1, b"c")),
            after_good(entry(usize::MAX, 1, b"c")),
            after_good(entry(0, usize::MAX, b"c")),
            after_good(entry(0, 200, b"c")),
            after_good(vec![0, 1, b'c', 0xff]),
            after_good(vec![0xff; 11]),
        ];
        for block in malformed {
            let error = load_error(&crafted(2, &[&block]));
            assert!(matches!(error, DumpError::Malformed { block: 0, at: 8.. }), "{error}");
        }
        for block in [after_good(entry(1, 0, b"")), after_good(entry(0, 1, b"a"))] {
            assert!(matches!(load_error(&crafted(2, &[&block])), DumpError::OutOfOrder { .. }));
        }
        let miscounted = crafted(3, &[&good]);
        assert!(matches!(load_error(&miscounted), DumpError::Count { announced: 3, found: 1 }));
    }

    proptest! {
        #[test]
        fn arbitrary_blocks_never_panic(keys in 0..4_usize, block in prop::collection::vec(0..12_u8, 1..80)) {
            if let Ok((_, index)) = KeyIndex::load(&mut crafted(keys, &[&block]).as_slice()) {
                index.check();
            }
        }
    }
}

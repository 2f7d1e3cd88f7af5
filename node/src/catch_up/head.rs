//! What stands in the frames of a transfer. Numbers are little-endian.
//!
//! ```text
//! head  term u64, index u64, term of that entry u64, voters: u32 and that many u64, learners: the same
//! rows  space u8, for each row: key: u32 and that many bytes, value: the same
//! end   rows u64, crc32c of the frames of rows u32
//! ```

use bytes::{Buf, BufMut, Bytes};

use crate::log::SnapshotMark;
use crate::storage::{Row, Space};

/// Members that may be named: far more than a cluster has.
const MEMBERS_MAX: usize = 10_000;

/// What is sent, and in which term its sender leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) term: u64,
    pub(super) mark: SnapshotMark,
}

impl Head {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let Head { term, mark } = self;
        for number in [*term, mark.index, mark.term] {
            out.put_u64_le(number);
        }
        for members in [&mark.voters, &mark.learners] {
            out.put_u32_le(u32::try_from(members.len()).expect("a cluster has few members"));
            members.iter().for_each(|member| out.put_u64_le(*member));
        }
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Result<Head, &'static str> {
        const CUT_SHORT: &str = "a head cut short";
        let number = |bytes: &mut &[u8]| bytes.try_get_u64_le().map_err(|_| CUT_SHORT);
        let (term, index, mark_term) = (number(&mut bytes)?, number(&mut bytes)?, number(&mut bytes)?);
        let mut members = || {
            let count = usize::try_from(bytes.try_get_u32_le().map_err(|_| CUT_SHORT)?).unwrap_or(usize::MAX);
            if count > MEMBERS_MAX {
                return Err("a head that names too many members");
            }
            (0..count).map(|_| number(&mut bytes)).collect::<Result<Vec<u64>, _>>()
        };
        let (voters, learners) = (members()?, members()?);
        if bytes.has_remaining() {
            return Err("a head with bytes behind its end");
        }
        if index == 0 || index > u64::MAX / 2 || mark_term == 0 || term < mark_term || voters.is_empty() {
            return Err("a head that no leader sends");
        }
        Ok(Head { term, mark: SnapshotMark { index, term: mark_term, voters, learners } })
    }
}

pub(super) fn encode_space(space: Space, out: &mut Vec<u8>) {
    out.put_u8(space as u8);
}

pub(super) fn encode_row((key, value): &Row, out: &mut Vec<u8>) {
    for part in [key, value] {
        out.put_u32_le(u32::try_from(part.len()).expect("a row is far smaller than 4 GiB"));
        out.put_slice(part);
    }
}

pub(super) fn decode_rows(mut bytes: &[u8]) -> Result<(Space, Vec<Row>), &'static str> {
    const CUT_SHORT: &str = "rows cut short";
    let code = bytes.try_get_u8().map_err(|_| CUT_SHORT)?;
    let space = Space::ALL.into_iter().find(|space| *space as u8 == code).ok_or("rows of an unknown space")?;
    let mut rows = Vec::new();
    while bytes.has_remaining() {
        let mut part = || {
            let length = usize::try_from(bytes.try_get_u32_le().map_err(|_| CUT_SHORT)?).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at_checked(length).ok_or(CUT_SHORT)?;
            bytes = rest;
            Ok::<_, &'static str>(Bytes::copy_from_slice(part))
        };
        rows.push((part()?, part()?));
    }
    Ok((space, rows))
}

pub(super) fn encode_end(rows: u64, sum: u32, out: &mut Vec<u8>) {
    out.put_u64_le(rows);
    out.put_u32_le(sum);
}

pub(super) fn decode_end(mut bytes: &[u8]) -> Result<(u64, u32), &'static str> {
    if bytes.len() != 12 {
        return Err("an end of the wrong length");
    }
    Ok((bytes.get_u64_le(), bytes.get_u32_le()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_and_cut_short_nowhere() {
        let mark = SnapshotMark { index: 7, term: 2, voters: vec![1, u64::MAX], learners: vec![3] };
        let head = Head { term: 3, mark };
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        assert_eq!(Head::decode(&bytes), Ok(head.clone()));
        for length in 0..bytes.len() {
            assert_eq!(Head::decode(&bytes[..length]), Err("a head cut short"));
        }
        assert_eq!(Head::decode(&[&bytes[..], b"x"].concat()), Err("a head with bytes behind its end"));
        for wrong in [
            Head { term: 1, ..head.clone() },
            Head { mark: SnapshotMark { index: 0, ..head.mark.clone() }, ..head.clone() },
            Head { mark: SnapshotMark { voters: Vec::new(), ..head.mark.clone() }, ..head },
        ] {
            bytes.clear();
            wrong.encode(&mut bytes);
            assert_eq!(Head::decode(&bytes), Err("a head that no leader sends"));
        }

        let rows = vec![(Bytes::from("a"), Bytes::from("value")), (Bytes::from("b"), Bytes::new())];
        bytes.clear();
        encode_space(Space::Rev, &mut bytes);
        rows.iter().for_each(|row| encode_row(row, &mut bytes));
        assert_eq!(decode_rows(&bytes), Ok((Space::Rev, rows)));
        let whole: Vec<usize> = (0..bytes.len()).filter(|length| decode_rows(&bytes[..*length]).is_ok()).collect();
        assert_eq!(whole, [1, 1 + 4 + 1 + 4 + 5]);
        bytes[0] = 9;
        assert_eq!(decode_rows(&bytes), Err("rows of an unknown space"));
        bytes.clear();
        encode_end(9, 8, &mut bytes);
        assert_eq!(decode_end(&bytes), Ok((9, 8)));
        assert_eq!(decode_end(&bytes[1..]), Err("an end of the wrong length"));
    }
}

//! Variable-length integers: seven bits a byte, low bits first, the high bit set on all bytes but the last.

/// The most bytes a `u64` takes.
pub(super) const VARINT_BYTES_MAX: usize = 10;

/// Writes `value` at `*at` and moves `*at` behind it.
#[inline]
pub(super) fn write(out: &mut [u8], at: &mut usize, mut value: u64) {
    while value >= 0x80 {
        out[*at] = (value & 0x7f) as u8 | 0x80;
        value >>= 7;
        *at += 1;
    }
    out[*at] = (value & 0x7f) as u8;
    *at += 1;
}

pub(super) fn push(out: &mut Vec<u8>, value: usize) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    let mut len = 0;
    write(&mut bytes, &mut len, value as u64);
    out.extend_from_slice(&bytes[..len]);
}

/// Reads a value at `*at` and moves `*at` behind it. None when the bytes end too soon or hold more than 64 bits.
#[inline]
pub(super) fn read(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    *at += 1;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    read_rest(bytes, at, u64::from(first & 0x7f))
}

#[inline]
fn read_rest(bytes: &[u8], at: &mut usize, mut value: u64) -> Option<u64> {
    for shift in (7..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if (bits << shift) >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// How many bytes `value` takes.
#[inline]
pub(super) fn len(value: usize) -> usize {
    let bits = (usize::BITS - (value | 1).leading_zeros()) as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_at_every_length() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = [0; VARINT_BYTES_MAX];
                let (mut end, mut at) = (0, 0);
                write(&mut bytes, &mut end, value);
                assert_eq!(read(&bytes[..end], &mut at), Some(value));
                assert_eq!((at, len(usize::try_from(value).unwrap())), (end, end));
                assert_eq!(read(&bytes[..end - 1], &mut 0), None);
            }
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        assert_eq!(read(&[0xff; 11], &mut 0), None);
        let mut bytes = [0xff; 10];
        bytes[9] = 2;
        assert_eq!(read(&bytes, &mut 0), None);
    }
}

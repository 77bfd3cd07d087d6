//! Where positions lie in the buffer.

/// A run of offsets in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First offset.
    pub offset: usize,
    /// How many.
    pub length: usize,
}

/// A run of positions: two spans where it passes the end of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Up to the end of the buffer.
    pub first: Span,
    /// From its start; often empty.
    pub second: Span,
}

impl Spans {
    #[inline]
    pub(super) fn of(position: u64, length: u64, capacity: u64) -> Self {
        let offset = (position & (capacity - 1)) as usize;
        let length = length as usize;
        let before_end = length.min(capacity as usize - offset);
        Self {
            first: Span { offset, length: before_end },
            second: Span { offset: 0, length: length - before_end },
        }
    }

    /// Bytes or items in both.
    #[inline]
    pub fn length(&self) -> usize {
        self.first.length + self.second.length
    }

    /// Every offset in both, in order.
    #[inline]
    pub fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = (self.first, self.second);
        (first.offset..first.offset + first.length).chain(second.offset..second.offset + second.length)
    }

    /// The first `length` of them; all, if there are fewer.
    #[inline]
    pub fn first(&self, length: usize) -> Self {
        let first = self.first.length.min(length);
        let second = self.second.length.min(length - first);
        Self { first: Span { length: first, ..self.first }, second: Span { length: second, ..self.second } }
    }

    /// True if there is nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length() == 0
    }
}

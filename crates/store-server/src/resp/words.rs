//! The words of a request.

/// Where a word is in its buffer: the offset of its first byte, and of the byte after its last one.
pub(crate) type WordPlace = (u32, u32);

/// The words of a request, which lie in a buffer of somebody else.
#[derive(Clone, Copy, Debug)]
pub struct CommandWords<'a> {
    bytes: &'a [u8],
    places: &'a [WordPlace],
}

impl<'a> CommandWords<'a> {
    pub(crate) fn new(bytes: &'a [u8], places: &'a [WordPlace]) -> Self {
        Self { bytes, places }
    }

    /// Returns the number of words, the name of the command included.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there is no word.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns a word, an empty one if there are fewer. The table of commands has checked the number of words.
    pub fn word(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    /// Returns a word, if there are so many.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.places.get(index)?;
        self.bytes.get(from as usize..to as usize)
    }

    /// Returns the words from this one on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let words = *self;
        (index..words.len()).map(move |index| words.word(index))
    }

    /// Returns whether a word is this one, in letters of either case.
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.word(index).eq_ignore_ascii_case(word.as_bytes())
    }
}

/// The words of a command that waits for EXEC.
#[derive(Debug)]
pub(crate) struct KeptWords {
    bytes: Vec<u8>,
    places: Vec<WordPlace>,
}

impl KeptWords {
    pub(crate) fn of(words: CommandWords<'_>) -> Self {
        let mut kept = Self { bytes: Vec::new(), places: Vec::with_capacity(words.len()) };
        for word in words.from(0) {
            let from = kept.bytes.len() as u32;
            kept.bytes.extend_from_slice(word);
            kept.places.push((from, kept.bytes.len() as u32));
        }
        kept
    }

    pub(crate) fn words(&self) -> CommandWords<'_> {
        CommandWords::new(&self.bytes, &self.places)
    }

    /// Returns the bytes of memory that the words take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<WordPlace>() + size_of::<Self>()
    }
}

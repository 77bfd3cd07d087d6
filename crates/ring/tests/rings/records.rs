//! Records of any size through a ring of any size, in pieces of any size.

use caravan_ring::record::{LengthReader, TooLong, prefix};
use proptest::prelude::*;

use crate::byte_ring;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn records_come_out_as_they_went_in(
        bits in 3_u32..7,
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..12),
        pieces in prop::collection::vec((1_usize..40, 1_usize..40, any::<bool>()), 1..20),
    ) {
        let (mut producer, mut consumer) = byte_ring(1 << bits);
        let stream: Vec<u8> =
            records.iter().flat_map(|record| [&prefix(record.len() as u32)[..], record].concat()).collect();
        let mut reader = LengthReader::new(100);
        let (mut sent, mut arrived) = (0, Vec::<Vec<u8>>::new());
        let mut missing = 0;
        for (write, read, release) in pieces.iter().cycle() {
            if arrived.len() == records.len() && missing == 0 {
                break;
            }
            let end = stream.len().min(sent + write);
            sent += producer.append(&stream[sent..end]).unwrap();
            let _ = producer.publish();
            consumer.refresh().unwrap();
            if missing > 0 {
                let mut some = vec![0; missing.min(*read)];
                let count = consumer.read(&mut some);
                missing -= count;
                arrived.last_mut().unwrap().extend_from_slice(&some[..count]);
            } else if let Some(length) = reader.next(&mut consumer).unwrap() {
                missing = length as usize;
                arrived.push(Vec::new());
            }
            if *release || consumer.unread() == 0 {
                let _ = consumer.release();
            }
        }
        prop_assert_eq!(arrived, records);
    }

    #[test]
    fn a_record_longer_than_agreed_is_refused(length in any::<u32>(), maximum in any::<u32>()) {
        let (mut producer, mut consumer) = byte_ring(8);
        producer.append(&prefix(length)).unwrap();
        let _ = producer.publish();
        consumer.refresh().unwrap();
        let expected = if length <= maximum {
            Ok(Some(length))
        } else {
            Err(TooLong { length: u64::from(length), maximum: u64::from(maximum) })
        };
        prop_assert_eq!(LengthReader::new(maximum).next(&mut consumer), expected);
    }
}

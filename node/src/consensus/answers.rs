//! The way back from the raft and apply threads to the request that waits on a shard.
//!
//! A shard is one thread with its own runtime. It keeps a table of waiting requests; a [`Ticket`] names a place in it
//! and travels with the proposal. Whoever finishes requests collects their answers in a [`Delivery`] and hands each
//! shard all of its answers at once, so that a batch of a hundred answers wakes a shard once, not a hundred times.
//!
//! Bounds: [`WAITING_MAX`] requests a shard; a mailbox never holds more than the tickets its shard has given out.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::apply::Reply;
use crate::refusal::Refusal;

/// Requests that may wait on one shard. A bound against a client that never stops opening streams; the backlog rule of
/// admission refuses long before.
const WAITING_MAX: usize = 65_536;

/// What a waiting request gets.
pub(crate) type Answer = Result<Reply, Refusal>;

/// A place in a shard's table of waiting requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    shard: u16,
    slot: u32,
    /// Tells this use of the slot from earlier ones: a request that gave up frees its slot, and its late answer must
    /// not reach the next holder.
    generation: u32,
}

/// Who waits for an answer.
#[derive(Clone, Debug)]
pub(crate) enum Waiter {
    /// A request on a shard.
    Shard(Ticket),
    /// A thread outside the shards, such as lease expiry.
    Thread(crossbeam_channel::Sender<Answer>),
    /// Nobody.
    None,
}

/// A shard's letter box, shared between the shard and those who answer.
pub(crate) struct Mailbox {
    // A lock, since three threads post here; held for a push or a swap.
    letters: Mutex<Vec<(Ticket, Answer)>>,
    posted: Notify,
}

/// The letter boxes of all shards, indexed by shard.
#[derive(Clone)]
pub(crate) struct PostOffice(Arc<Vec<Mailbox>>);

impl PostOffice {
    pub(crate) fn new(shards: u16) -> PostOffice {
        let boxes = (0..shards).map(|_| Mailbox { letters: Mutex::new(Vec::new()), posted: Notify::new() });
        PostOffice(Arc::new(boxes.collect()))
    }

    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.0.len()).expect("built from a u16")
    }

    /// Makes the calling thread the shard with this number and sorts its mail until the runtime stops.
    ///
    /// To be spawned once on each shard's runtime before the shard serves.
    pub(crate) async fn run_shard(self, shard: u16) {
        TABLE.with_borrow_mut(|table| table.shard = shard);
        let mailbox = &self.0[usize::from(shard)];
        loop {
            mailbox.posted.notified().await;
            let letters = std::mem::take(&mut *mailbox.letters.lock());
            TABLE.with_borrow_mut(|table| {
                for (ticket, answer) in letters {
                    table.answer(ticket, answer);
                }
            });
        }
    }
}

/// Answers on their way, sorted by shard.
pub(crate) struct Delivery {
    office: PostOffice,
    by_shard: Vec<Vec<(Ticket, Answer)>>,
}

impl Delivery {
    pub(crate) fn new(office: PostOffice) -> Delivery {
        let by_shard = (0..office.shards()).map(|_| Vec::new()).collect();
        Delivery { office, by_shard }
    }

    pub(crate) fn add(&mut self, waiter: Waiter, answer: Answer) {
        match waiter {
            Waiter::Shard(ticket) => self.by_shard[usize::from(ticket.shard)].push((ticket, answer)),
            Waiter::Thread(sender) => {
                // The thread may have stopped waiting; then nobody wants the answer.
                drop(sender.try_send(answer));
            }
            Waiter::None => {}
        }
    }

    /// Posts what was added; each shard with mail is woken once.
    pub(crate) fn send(&mut self) {
        for (mailbox, letters) in self.office.0.iter().zip(&mut self.by_shard) {
            if letters.is_empty() {
                continue;
            }
            mailbox.letters.lock().append(letters);
            mailbox.posted.notify_one();
        }
    }
}

enum Slot {
    Free,
    Waiting(Option<Waker>),
    Answered(Answer),
}

#[derive(Default)]
struct Table {
    shard: u16,
    slots: Vec<(u32, Slot)>,
    free: Vec<u32>,
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::default();
}

impl Table {
    fn open(&mut self) -> Option<Ticket> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < WAITING_MAX => {
                self.slots.push((0, Slot::Free));
                u32::try_from(self.slots.len() - 1).expect("below WAITING_MAX")
            }
            None => return None,
        };
        let (generation, state) = &mut self.slots[slot as usize];
        *state = Slot::Waiting(None);
        Some(Ticket { shard: self.shard, slot, generation: *generation })
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        match self.slots.get_mut(ticket.slot as usize) {
            Some((generation, slot)) if *generation == ticket.generation => Some(slot),
            _ => None,
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        // No such slot: the request gave up, and what it asked for happened all the same.
        let Some(slot) = self.slot(ticket) else { return };
        if let Slot::Waiting(waker) = std::mem::replace(slot, Slot::Answered(answer))
            && let Some(waker) = waker
        {
            waker.wake();
        }
    }

    fn close(&mut self, ticket: Ticket) {
        if let Some((generation, slot)) = self.slots.get_mut(ticket.slot as usize)
            && *generation == ticket.generation
        {
            *generation = generation.wrapping_add(1);
            *slot = Slot::Free;
            self.free.push(ticket.slot);
        }
    }
}

/// A request's wait for its answer. To be polled on the shard that opened it.
pub(crate) struct Pending(Ticket);

impl Pending {
    /// Takes a place in this shard's table.
    ///
    /// # Errors
    /// `TooManyRequests` when [`WAITING_MAX`] requests wait already.
    pub(crate) fn open() -> Result<Pending, Refusal> {
        TABLE.with_borrow_mut(Table::open).map(Pending).ok_or(Refusal::TooManyRequests)
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::Shard(self.0)
    }
}

impl Future for Pending {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        TABLE.with_borrow_mut(|table| {
            let slot = table.slot(self.0).expect("an open request keeps its slot until it is dropped");
            match slot {
                Slot::Answered(_) => match std::mem::replace(slot, Slot::Waiting(None)) {
                    Slot::Answered(answer) => Poll::Ready(answer),
                    Slot::Waiting(_) | Slot::Free => unreachable!("matched as answered above"),
                },
                Slot::Waiting(waker) => {
                    if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                        *waker = Some(context.waker().clone());
                    }
                    Poll::Pending
                }
                Slot::Free => unreachable!("only a drop frees a slot"),
            }
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        TABLE.with_borrow_mut(|table| table.close(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard<T>(body: impl AsyncFnOnce(PostOffice) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let office = PostOffice::new(1);
        local.block_on(&runtime, async {
            tokio::task::spawn_local(office.clone().run_shard(0));
            body(office).await
        })
    }

    #[test]
    fn a_late_answer_does_not_reach_the_next_holder_of_the_slot() {
        shard(async |office| {
            let gave_up = Pending::open().unwrap();
            let late = gave_up.waiter();
            drop(gave_up);
            let next = Pending::open().unwrap();
            let mut delivery = Delivery::new(office);
            delivery.add(late, Err(Refusal::NoLeader));
            delivery.add(next.waiter(), Err(Refusal::Timeout));
            delivery.send();
            assert_eq!(next.await.unwrap_err(), Refusal::Timeout);
        });
    }

    #[test]
    fn an_answer_from_another_thread_arrives() {
        shard(async |office| {
            let pending = Pending::open().unwrap();
            let waiter = pending.waiter();
            std::thread::spawn(move || {
                let mut delivery = Delivery::new(office);
                delivery.add(waiter, Err(Refusal::LeaseNotFound));
                delivery.send();
            });
            assert_eq!(pending.await.unwrap_err(), Refusal::LeaseNotFound);
        });
    }
}

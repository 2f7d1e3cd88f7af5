// walcheck reads and writes log directories with etcd's own package, so that the tests can hold Kuorum's log against it.
//
//	walcheck read DIR             prints what etcd reads, a record a line
//	walcheck write DIR ENTRIES    writes so many entries, with states and snapshot marks between them
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// Segments this small make a few hundred entries fill several.
const segmentBytes = 16 * 1024

func main() {
	if len(os.Args) < 3 {
		fail("usage: walcheck read DIR | write DIR ENTRIES")
	}
	switch os.Args[1] {
	case "read":
		read(os.Args[2])
	case "write":
		if len(os.Args) < 4 {
			fail("write takes a number of entries")
		}
		entries, err := strconv.Atoi(os.Args[3])
		check(err)
		write(os.Args[2], entries)
	default:
		fail("unknown command " + os.Args[1])
	}
}

func read(dir string) {
	logger := zap.NewNop()
	marks, err := wal.ValidSnapshotEntries(logger, dir)
	check(err)
	mark := &walpb.Snapshot{}
	if len(marks) > 0 {
		mark = marks[len(marks)-1]
	}
	w, err := wal.OpenForRead(logger, dir, mark)
	check(err)
	defer w.Close()
	metadata, state, entries, err := w.ReadAll()
	check(err)
	fmt.Printf("metadata %x\n", metadata)
	fmt.Printf("mark %d\n", mark.GetIndex())
	for _, entry := range entries {
		fmt.Printf("entry %d %d %x\n", entry.GetTerm(), entry.GetIndex(), sha256.Sum256(entry.Data))
	}
	fmt.Printf("state %d %d %d\n", state.GetTerm(), state.GetVote(), state.GetCommit())
}

// write makes a log whose entry n holds "etcd entry n" n times over.
func write(dir string, entries int) {
	wal.SegmentSizeBytes = segmentBytes
	metadata := []byte{0x08, 7, 0x10, 9}
	w, err := wal.Create(zap.NewNop(), dir, metadata)
	check(err)
	for n := 1; n <= entries; n++ {
		term, index := uint64(1+n/50), uint64(n)
		kind := raftpb.EntryNormal
		data := []byte(strings.Repeat(fmt.Sprintf("etcd entry %d", n), n%40))
		commit, vote := index-1, uint64(7)
		state := &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
		check(w.Save(state, []*raftpb.Entry{{Term: &term, Index: &index, Type: &kind, Data: data}}))
		if n == entries/2 {
			voters := &raftpb.ConfState{Voters: []uint64{7}}
			check(w.SaveSnapshot(&walpb.Snapshot{Index: &index, Term: &term, ConfState: voters}))
		}
	}
	check(w.Close())
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "walcheck:", why)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

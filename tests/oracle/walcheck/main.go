// Command walcheck reads and writes write-ahead logs with etcd's own package, as the oracle of the log's interop test.
//
//	walcheck read DIR          prints one line a record, from the newest valid snapshot mark on
//	walcheck write DIR SEED N  writes a log of N entries
package main

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// Small, so that a short log has several segments.
const segmentBytes = 64 * 1024

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "walcheck:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "read":
		return read(args[1])
	case len(args) == 4 && args[0] == "write":
		seed, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return err
		}
		count, err := strconv.ParseUint(args[3], 10, 64)
		if err != nil {
			return err
		}
		return write(args[1], seed, count)
	}
	return errors.New("usage: walcheck read DIR | walcheck write DIR SEED N")
}

func read(dir string) error {
	lg := zap.NewNop()
	marks, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil {
		return fmt.Errorf("marks: %w", err)
	}
	if len(marks) == 0 {
		return errors.New("no valid snapshot mark")
	}
	mark := marks[len(marks)-1]
	w, err := wal.OpenForRead(lg, dir, mark)
	if err != nil {
		return err
	}
	meta, state, entries, err := w.ReadAll()
	if err != nil {
		return err
	}
	var metadata etcdserverpb.Metadata
	if err := proto.Unmarshal(meta, &metadata); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	fmt.Printf("metadata %d %d\n", metadata.GetNodeID(), metadata.GetClusterID())
	fmt.Printf("mark %d %d %v\n", mark.GetIndex(), mark.GetTerm(), mark.GetConfState().GetVoters())
	fmt.Printf("state %d %d %d\n", state.GetTerm(), state.GetVote(), state.GetCommit())
	for _, e := range entries {
		fmt.Printf("entry %d %d %d %d %x\n", e.GetTerm(), e.GetIndex(), int32(e.GetType()), len(e.GetData()), sha1.Sum(e.GetData()))
	}
	return nil
}

func write(dir string, seed int64, count uint64) error {
	wal.SegmentSizeBytes = segmentBytes
	random := rand.New(rand.NewSource(seed))
	meta, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: proto.Uint64(random.Uint64()), ClusterID: proto.Uint64(random.Uint64())})
	if err != nil {
		return err
	}
	w, err := wal.Create(zap.NewNop(), dir, meta)
	if err != nil {
		return err
	}
	term, index := uint64(1), uint64(0)
	for index < count {
		commit := index
		// Now and then a new leader replaces entries that were not committed.
		var batch []*raftpb.Entry
		if random.Intn(8) == 0 {
			term++
		}
		for range random.Intn(4) {
			data := make([]byte, random.Intn(2000))
			random.Read(data)
			index++
			kind := raftpb.EntryType(random.Intn(3))
			batch = append(batch, &raftpb.Entry{Term: proto.Uint64(term), Index: proto.Uint64(index), Type: &kind, Data: data})
		}
		state := &raftpb.HardState{Term: proto.Uint64(term), Vote: proto.Uint64(random.Uint64()), Commit: proto.Uint64(commit)}
		if err := w.Save(state, batch); err != nil {
			return err
		}
		if len(batch) > 1 && random.Intn(4) == 0 {
			index--
		}
		if random.Intn(20) == 0 && commit > 0 {
			mark := &walpb.Snapshot{Index: proto.Uint64(commit), Term: proto.Uint64(term), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}}
			if err := w.SaveSnapshot(mark); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

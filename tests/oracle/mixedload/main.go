// Command mixedload loads a cluster with etcd's own Go client: reads, writes, transactions, leases and watches, over all
// members, until its input ends.
//
//	mixedload ENDPOINT...
//
// Each line of its input names the phase that begins. At the end it prints one JSON object: by phase how many requests
// there were and how long they took, what failed, and what the watches missed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	workers = 12
	keys    = 200
	// A worker rests so long after a request, or less: the load is steady and leaves a small machine some air.
	restMax = 16 * time.Millisecond
	// Longer than any request may take, so that a slow one is counted and not taken for a failed one.
	requestTimeout = 20 * time.Second
	failuresMax    = 20
	// Only keys of the load have this in them.
	own        = "/load/"
	seenWithin = 20 * time.Second
)

// Half of the keys are under the policies, half are not.
var prefixes = [2]string{"/guarded" + own, "/elsewhere" + own}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: mixedload ENDPOINT...")
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mixedload:", err)
		os.Exit(1)
	}
}

type sample struct {
	phase int32
	took  time.Duration
}

type phaseReport struct {
	Phase    string `json:"phase"`
	Requests int    `json:"requests"`
	P50      int64  `json:"p50_us"`
	P99      int64  `json:"p99_us"`
	Max      int64  `json:"max_us"`
	// Beyond twice the 99th percentile of the first phase.
	Late int `json:"late"`
}

type report struct {
	Phases   []phaseReport `json:"phases"`
	Failures []string      `json:"failures"`
	// Events of the load's own writes: what each watch told, and what there was to tell.
	Watched []int64 `json:"watched"`
	Written int64   `json:"written"`
}

type load struct {
	phase    atomic.Int32
	names    []string
	written  atomic.Int64
	stopping atomic.Bool

	mutex    sync.Mutex
	failures []string
}

func (l *load) failed(what string, err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.failures) < failuresMax {
		l.failures = append(l.failures, fmt.Sprintf("%s: %s: %v", l.names[l.phase.Load()], what, err))
	}
}

func run(endpoints []string) error {
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() {
		return errors.New("the first line of the input has to name the first phase")
	}
	l := &load{names: []string{lines.Text()}, failures: []string{}}
	clients := make([]*clientv3.Client, len(endpoints))
	for i, endpoint := range endpoints {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
		if err != nil {
			return err
		}
		defer client.Close()
		clients[i] = client
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watched := make([]atomic.Int64, len(clients))
	for i, client := range clients {
		watching := client.Watch(clientv3.WithRequireLeader(ctx), "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if created := <-watching; !created.Created {
			return fmt.Errorf("no watch on %s: %w", endpoints[i], created.Err())
		}
		go l.watch(ctx, watching, &watched[i])
	}
	team := make([]*worker, workers)
	var running sync.WaitGroup
	for number := range team {
		chance := rand.New(rand.NewPCG(1, uint64(number)))
		team[number] = &worker{load: l, client: clients[number%len(clients)], chance: chance}
		running.Go(team[number].work)
	}
	for lines.Scan() {
		l.mutex.Lock()
		l.names = append(l.names, lines.Text())
		l.mutex.Unlock()
		l.phase.Add(1)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	l.stopping.Store(true)
	running.Wait()
	all := func() bool {
		return !slices.ContainsFunc(toValues(watched), func(seen int64) bool { return seen < l.written.Load() })
	}
	for deadline := time.Now().Add(seenWithin); !all() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	var samples []sample
	for _, worker := range team {
		samples = append(samples, worker.samples...)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return json.NewEncoder(os.Stdout).Encode(report{
		Phases: l.phases(samples), Failures: l.failures,
		Watched: toValues(watched), Written: l.written.Load(),
	})
}

func toValues(counters []atomic.Int64) []int64 {
	values := make([]int64, len(counters))
	for i := range counters {
		values[i] = counters[i].Load()
	}
	return values
}

func (l *load) watch(ctx context.Context, watching clientv3.WatchChan, seen *atomic.Int64) {
	var last int64
	for response := range watching {
		if err := response.Err(); err != nil {
			l.failed("watch", err)
		}
		for _, event := range response.Events {
			// Events of one transaction share a revision; there are at most two here.
			if event.Kv.ModRevision < last {
				l.failed("watch", fmt.Errorf("revision %d after %d", event.Kv.ModRevision, last))
			}
			last = event.Kv.ModRevision
			if strings.Contains(string(event.Kv.Key), own) {
				seen.Add(1)
			}
		}
	}
	if ctx.Err() == nil {
		l.failed("watch", errors.New("it ended"))
	}
}

// worker asks for one thing after the other.
type worker struct {
	*load
	client  *clientv3.Client
	chance  *rand.Rand
	samples []sample
}

func (w *worker) work() {
	for !w.stopping.Load() {
		w.next()
		time.Sleep(time.Duration(w.chance.Int64N(int64(restMax))))
	}
}

// ask makes one request, and says whether it was answered as it should be.
func (w *worker) ask(what string, request func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	phase, begun := w.phase.Load(), time.Now()
	err := request(ctx)
	w.samples = append(w.samples, sample{phase, time.Since(begun)})
	if err != nil {
		w.failed(what, err)
	}
	return err == nil
}

func (w *worker) next() {
	prefix := prefixes[w.chance.IntN(len(prefixes))]
	key := fmt.Sprintf("%s%d", prefix, w.chance.IntN(keys))
	value := strings.Repeat("v", 1+w.chance.IntN(100))
	switch dice := w.chance.IntN(100); {
	case dice < 35:
		w.ask("put", func(ctx context.Context) error {
			_, err := w.client.Put(ctx, key, value)
			return w.wrote(1, err)
		})
	case dice < 60:
		w.ask("get", func(ctx context.Context) error {
			_, err := w.client.Get(ctx, key)
			return err
		})
	case dice < 65:
		w.ask("list", func(ctx context.Context) error {
			_, err := w.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(50))
			return err
		})
	case dice < 70:
		w.ask("serializable get", func(ctx context.Context) error {
			_, err := w.client.Get(ctx, key, clientv3.WithSerializable())
			return err
		})
	case dice < 85:
		w.ask("txn", func(ctx context.Context) error {
			// It writes twice, whether the key was there or not.
			writes := []clientv3.Op{clientv3.OpPut(key, value), clientv3.OpPut(key+"/index", "i")}
			_, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(writes...).Else(writes...).Commit()
			return w.wrote(2, err)
		})
	case dice < 95:
		w.ask("delete", func(ctx context.Context) error {
			response, err := w.client.Delete(ctx, key)
			if err != nil {
				return err
			}
			return w.wrote(response.Deleted, nil)
		})
	default:
		w.lease(key)
	}
}

// lease grants one, renews it, hangs a key on it and gives it back.
func (w *worker) lease(key string) {
	var id clientv3.LeaseID
	granted := w.ask("lease grant", func(ctx context.Context) error {
		response, err := w.client.Grant(ctx, 60)
		if err != nil {
			return err
		}
		id = response.ID
		return nil
	})
	if !granted {
		return
	}
	w.ask("put with a lease", func(ctx context.Context) error {
		// A key of its own: no other request deletes it before the lease does.
		_, err := w.client.Put(ctx, fmt.Sprintf("%s/lease/%x", key, id), "l", clientv3.WithLease(id))
		return w.wrote(1, err)
	})
	w.ask("lease renewal", func(ctx context.Context) error {
		_, err := w.client.KeepAliveOnce(ctx, id)
		return err
	})
	w.ask("lease revocation", func(ctx context.Context) error {
		_, err := w.client.Revoke(ctx, id)
		return w.wrote(1, err)
	})
}

func (l *load) wrote(events int64, err error) error {
	if err == nil {
		l.written.Add(events)
	}
	return err
}

// phases sums up what was measured. A phase in which nothing was asked has no line.
func (l *load) phases(samples []sample) []phaseReport {
	took := make([][]time.Duration, len(l.names))
	for _, sample := range samples {
		took[sample.phase] = append(took[sample.phase], sample.took)
	}
	var phases []phaseReport
	var usual time.Duration
	for i, took := range took {
		if len(took) == 0 {
			continue
		}
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		if i == 0 {
			usual = p99
		}
		late, _ := slices.BinarySearch(took, 2*usual+1)
		phases = append(phases, phaseReport{
			Phase: l.names[i], Requests: len(took), P50: took[len(took)/2].Microseconds(), P99: p99.Microseconds(),
			Max: took[len(took)-1].Microseconds(), Late: len(took) - late,
		})
	}
	return phases
}

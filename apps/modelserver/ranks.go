package modelserver

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"
)

// A server that spans several hosts is one process for each rank. They meet at rank 0, the leader, and stay connected:
//
//	rank 1..n --hello--> leader --whole, once all are connected--> rank 1..n
//	          <--- a byte every second, in both directions --->
//
// A rank loads its model once all ranks are connected. When a connection ends after that, the processes at both ends
// exit with an error. The exit of the leader ends all other connections, so that all ranks exit, because a part of a
// model cannot serve requests. The leader refuses a rank of another version or epoch, and that rank exits with an error.
//
// A leader that gets a signal to stop leaves the other ranks once its requests have ended. Other ranks leave at once.

// leadersHere has the addresses of the leaders in this process, by name. kubelab runs the model servers of all pods in
// one process, and has no DNS for the names of pods.
var leadersHere sync.Map

// These are times of connections between ranks.
const (
	// rankBeat is the time between two signs of life of a rank. A rank without a sign for rankSilence counts as lost.
	rankBeat    = time.Second
	rankSilence = 10 * time.Second
	// rankRetry is the time between attempts to reach the leader.
	rankRetry = 200 * time.Millisecond
)

// rankHello is the first message of a rank.
type rankHello struct {
	Rank    int    `json:"rank"`
	Hosts   int    `json:"hosts"`
	Epoch   string `json:"epoch"`
	Version string `json:"version"`
	Model   string `json:"model"`
}

// rankAnswer is the leader's answer: Whole once all ranks are connected, or the reason why it refuses the rank.
type rankAnswer struct {
	Whole   bool   `json:"whole,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// rankSet is one rank's view of all ranks.
type rankSet struct {
	own     rankHello
	host    string
	port    int
	leader  string
	timeout time.Duration
	log     *slog.Logger

	// whole is closed when all ranks have met.
	whole     chan struct{}
	wholeOnce sync.Once
	// failed has the first error that ends this rank.
	failed chan error

	mu     sync.Mutex
	joined map[int]net.Conn
}

// newRankSet returns nil for a server on one host.
func newRankSet(cfg *Config) *rankSet {
	if cfg.Hosts < 2 {
		return nil
	}
	return &rankSet{
		own:  rankHello{Rank: cfg.Rank, Hosts: cfg.Hosts, Epoch: cfg.UnitEpoch, Version: cfg.VersionLabel, Model: cfg.Model},
		host: cmp.Or(cfg.RendezvousHost, cfg.Host), port: cfg.RendezvousPort, leader: cfg.Leader, timeout: cfg.RendezvousTimeout, log: cfg.Logger,
		whole: make(chan struct{}), failed: make(chan error, 1), joined: map[int]net.Conn{},
	}
}

// awaitRanks returns true once all ranks have met, and false when ctx ends first. It returns true for nil.
func (r *rankSet) awaitRanks(ctx context.Context) bool {
	if r == nil {
		return true
	}
	select {
	case <-r.whole:
		return true
	case <-ctx.Done():
		return false
	}
}

// run keeps the ranks connected until ctx ends, and then returns nil. It returns an error if this rank cannot continue.
func (r *rankSet) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	patience := time.AfterFunc(r.timeout, func() {
		if !r.isWhole() {
			r.fail(fmt.Errorf("rank %d of %d has not met the other ranks within %s", r.own.Rank, r.own.Hosts, r.timeout))
		}
	})
	defer patience.Stop()
	if r.own.Rank == 0 {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(r.host, strconv.Itoa(r.port)))
		if err != nil {
			return fmt.Errorf("cannot listen for other ranks (choose another --rendezvous-port): %w", err)
		}
		defer func() { _ = listener.Close() }() // ends accept
		here := listener.Addr().String()
		if r.leader != "" {
			leadersHere.Store(r.leader, here)
			defer leadersHere.CompareAndDelete(r.leader, here)
		}
		r.log.Info("waiting for other ranks", "address", here, "hosts", r.own.Hosts, "epoch", r.own.Epoch)
		running.Go(func() { r.accept(ctx, listener, &running) })
	} else {
		running.Go(func() { r.joinLeader(ctx) })
	}
	select {
	case err := <-r.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (r *rankSet) isWhole() bool {
	select {
	case <-r.whole:
		return true
	default:
		return false
	}
}

func (r *rankSet) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

// accept serves connections of other ranks until the listener is closed.
func (r *rankSet) accept(ctx context.Context, listener net.Listener, running *sync.WaitGroup) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			r.fail(fmt.Errorf("accept other ranks: %w", err)) // ignored after the end of run
			return
		}
		running.Go(func() {
			defer func() { _ = conn.Close() }()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			r.serve(ctx, conn)
		})
	}
}

// serve is the leader's end of one connection.
func (r *rankSet) serve(ctx context.Context, conn net.Conn) {
	lines := bufio.NewReader(conn)
	var hello rankHello
	if err := readLine(conn, lines, &hello); err != nil {
		return // a port scan or a check of the port
	}
	if why := r.admitRank(hello, conn); why != "" {
		r.log.Error("refused a rank", "rank", hello.Rank, "address", conn.RemoteAddr().String(), "error", why)
		_ = writeLine(conn, rankAnswer{Refused: why})
		return
	}
	r.log.Info("a rank has joined", "rank", hello.Rank, "address", conn.RemoteAddr().String())
	err := r.keepConnected(ctx, conn, lines)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joined[hello.Rank] != conn {
		return // a newer connection of the rank has replaced this connection
	}
	delete(r.joined, hello.Rank)
	if r.isWhole() && ctx.Err() == nil {
		r.fail(fmt.Errorf("lost rank %d of %d: %w", hello.Rank, r.own.Hosts, err))
	}
}

// admitRank adds a rank, or returns the reason why it refuses the rank. After the last rank, it sends Whole to all ranks.
func (r *rankSet) admitRank(hello rankHello, conn net.Conn) (refused string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	want := r.own
	want.Rank = hello.Rank
	switch {
	case hello.Epoch != want.Epoch:
		return fmt.Sprintf("it has epoch %q, and the leader has epoch %q", hello.Epoch, want.Epoch)
	case hello.Version != want.Version:
		return fmt.Sprintf("it has version %q, and the leader has version %q", hello.Version, want.Version)
	case hello != want:
		return fmt.Sprintf("it has model %q on %d hosts, and the leader has model %q on %d", hello.Model, hello.Hosts, want.Model, want.Hosts)
	case hello.Rank < 1 || hello.Rank >= want.Hosts:
		return fmt.Sprintf("rank %d is not 1 to %d", hello.Rank, want.Hosts-1)
	case r.isWhole():
		return fmt.Sprintf("all ranks have already met: rank %d has lost the other ranks", hello.Rank)
	}
	if before := r.joined[hello.Rank]; before != nil {
		_ = before.Close()
	}
	r.joined[hello.Rank] = conn
	if len(r.joined) < want.Hosts-1 {
		return ""
	}
	r.wholeOnce.Do(func() { close(r.whole) })
	for _, one := range r.joined {
		_ = writeLine(one, rankAnswer{Whole: true}) // the reader notices a lost connection
	}
	r.log.Info("all ranks have met", "hosts", want.Hosts, "epoch", want.Epoch)
	return ""
}

// joinLeader keeps this rank connected to the leader until ctx ends. It reconnects only until all ranks have met.
func (r *rankSet) joinLeader(ctx context.Context) {
	address := r.leader
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, strconv.Itoa(r.port))
	}
	last := ""
	for ctx.Err() == nil {
		at := address
		if here, ok := leadersHere.Load(r.leader); ok {
			at, _ = here.(string)
		}
		err := r.visit(ctx, at)
		switch refused := (*refusedError)(nil); {
		case ctx.Err() != nil:
			return
		case errors.As(err, &refused):
			r.log.Error("the leader refused this rank", "leader", address, "error", err)
			r.fail(err)
			return
		case r.isWhole():
			r.fail(fmt.Errorf("rank %d of %d has lost its leader %s: %w", r.own.Rank, r.own.Hosts, address, err))
			return
		case err.Error() != last:
			last = err.Error()
			r.log.Info("waiting for the leader", "leader", address, "error", err)
		}
		if sleepUntil(ctx, time.Now().Add(rankRetry)) != nil {
			return
		}
	}
}

type refusedError struct{ why string }

func (e *refusedError) Error() string { return "the leader refused this rank: " + e.why }

// visit is this rank's end of one connection. It returns the reason why the connection ended.
func (r *rankSet) visit(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: peerDial}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := writeLine(conn, r.own); err != nil {
		return err
	}
	return r.keepConnected(ctx, conn, bufio.NewReader(conn))
}

// keepConnected sends signs of life, and reads the signs of the other end, until the connection is lost or ctx ends.
func (r *rankSet) keepConnected(ctx context.Context, conn net.Conn, lines *bufio.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	var beating sync.WaitGroup
	defer beating.Wait()
	defer cancel()
	beating.Go(func() {
		for sleepUntil(ctx, time.Now().Add(rankBeat)) == nil {
			if writeLine(conn, rankAnswer{}) != nil {
				return
			}
		}
	})
	for {
		var answer rankAnswer
		if err := readLine(conn, lines, &answer); err != nil {
			return err
		}
		switch {
		case answer.Refused != "":
			return &refusedError{answer.Refused}
		case answer.Whole:
			r.log.Info("all ranks have met", "rank", r.own.Rank, "hosts", r.own.Hosts, "epoch", r.own.Epoch)
			r.wholeOnce.Do(func() { close(r.whole) })
		}
	}
}

func readLine(conn net.Conn, lines *bufio.Reader, into any) error {
	if err := conn.SetReadDeadline(time.Now().Add(rankSilence)); err != nil {
		return err
	}
	line, err := lines.ReadSlice('\n') // a line that is longer than the reader's buffer is an error
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

func writeLine(conn net.Conn, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(rankSilence)); err != nil {
		return err
	}
	_, err = conn.Write(append(data, '\n'))
	return err
}

// validateRanks checks the settings of ranks.
func (c Config) validateRanks() error {
	switch {
	case c.Hosts < 0 || c.Hosts > 100:
		return fmt.Errorf("WINDLASS_HOSTS must be 1 to 100, not %d", c.Hosts)
	case c.Hosts < 2:
		return nil
	case c.Rank < 0 || c.Rank >= c.Hosts:
		return fmt.Errorf("WINDLASS_RANK must be 0 to %d, not %d", c.Hosts-1, c.Rank)
	case c.Rank > 0 && c.Leader == "":
		return errors.New("a rank above 0 needs the address of its leader: WINDLASS_LEADER")
	case c.RendezvousPort < 0 || c.RendezvousPort > 65535:
		return fmt.Errorf("--rendezvous-port must be 0 to 65535, not %d", c.RendezvousPort)
	case c.RendezvousTimeout < 0:
		return errors.New("--rendezvous-timeout must not be negative")
	}
	return nil
}

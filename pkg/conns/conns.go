// Package conns limits the connections that clients have to a process, in total and per address.
// At a limit, it closes the connection that has been without a request for longest. If all connections
// have requests, it closes the new one. For a new connection of an address that has more than its share,
// it closes a connection of the same address, unless the address is exempt. The package also limits how
// many TLS handshakes use the processor at the same time.
package conns

import (
	"container/list"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a Table. 0 means no limit.
type Limits struct {
	// Total limits all connections, and PerAddress the connections from one address. A /64 network of
	// IPv6 counts as one address.
	Total, PerAddress int
	// Exempt reports whether PerAddress and the share of an address do not apply to an address. An
	// example is a proxy that connects for many clients. Nil: no address is exempt.
	Exempt func(netip.Addr) bool
}

func (l Limits) isExempt(host netip.Addr) bool { return l.Exempt != nil && l.Exempt(host) }

// Table holds the connections of a process. It is safe for concurrent use. A nil Table limits nothing.
type Table struct {
	limits     Limits
	refused    atomic.Int64
	shed       atomic.Int64
	waiting    atomic.Int64    // the number of streams in Entry.Wait
	handshakes *handshakeQueue // the queue of TLS handshakes

	mu        sync.Mutex
	all       queue
	addresses map[netip.Addr]*queue
	tallies   map[string]*tally // by listener
	holdback  holdback[netip.AddrPort]
	callers   holdback[string]
}

// queue has entries in the order of their time since the last request, as of the last check of each entry.
// If makeRoom finds an entry at the front that had a request since its last check, it moves the entry to
// the end.
type queue struct{ list.List }

// New returns a Table.
func New(limits Limits) *Table {
	return &Table{
		limits: limits, addresses: map[netip.Addr]*queue{}, tallies: map[string]*tally{},
		holdback: holdback[netip.AddrPort]{}, callers: holdback[string]{}, handshakes: newHandshakeQueue(runtime.GOMAXPROCS(0)),
	}
}

// Entry is a connection's place in the table. A nil Entry stands for a connection without limits.
type Entry struct {
	table   *Table
	address netip.Addr
	faulty  netip.AddrPort // the key for which faults of the connection count
	exempt  bool
	tally   *tally
	// requests counts the requests that run. since is when the last request ended, in Unix nanoseconds.
	requests atomic.Int32
	since    atomic.Int64

	// The table's mu guards the following fields. seen is the value of since at the last check. shut closes
	// the connection. refusals are its refused streams.
	inAll, inAddress *list.Element
	seen             int64
	shut             func()
	refusals         refusals
}

// Add counts a connection from remote. The table calls shut to close the connection. ok is false if the
// table has no room. Then the caller must close the connection.
func (t *Table) Add(remote net.Addr, shut func()) (_ *Entry, ok bool) {
	return t.add(&tally{}, remote, shut)
}

// add is Add for a connection that the tally counts.
func (t *Table) add(of *tally, remote net.Addr, shut func()) (_ *Entry, ok bool) {
	if t == nil {
		return nil, true
	}
	host, address := addressOf(remote)
	e := &Entry{table: t, address: address, faulty: t.faultKey(remote), exempt: t.limits.isExempt(host), tally: of, shut: shut}
	e.seen = time.Now().UnixNano()
	e.since.Store(e.seen)
	var closes []func()
	t.mu.Lock()
	ok = true
	mine, limit := t.addresses[address], t.limits.PerAddress
	if limit > 0 && mine != nil && mine.Len() >= limit && !t.limits.isExempt(host) {
		closes, ok = t.makeRoom(mine, closes)
	}
	if limit := t.limits.Total; ok && limit > 0 && t.all.Len() >= limit {
		from := &t.all
		if mine != nil && mine.Len() > t.all.Len()/len(t.addresses) && !t.limits.isExempt(host) {
			from = mine
		}
		closes, ok = t.makeRoom(from, closes)
	}
	if ok {
		if mine = t.addresses[address]; mine == nil { // makeRoom drops a queue with its last entry
			mine = &queue{}
			t.addresses[address] = mine
		}
		e.inAll, e.inAddress = t.all.PushBack(e), mine.PushBack(e)
		of.open.Add(1)
	}
	t.mu.Unlock()
	for _, shut := range closes {
		shut()
	}
	if !ok {
		t.refused.Add(1)
		of.refused.Add(1)
		return nil, false
	}
	return e, true
}

// looks is how many connections of a queue makeRoom checks at most to find one without a request.
const looks = 64

// makeRoom removes the connection of the queue that has been without a request for longest, and appends
// its shut to closes. It returns false if it finds no such connection.
func (t *Table) makeRoom(q *queue, closes []func()) (_ []func(), ok bool) {
	for range min(looks, 2*q.Len()) { // twice, because a connection that had a request since its last check may be idle now
		front := q.Front()
		e := front.Value.(*Entry) //nolint:forcetypeassert // nothing else is stored
		since := e.since.Load()
		if e.requests.Load() == 0 && since <= e.seen {
			t.remove(e)
			t.shed.Add(1)
			e.tally.shed.Add(1)
			return append(closes, e.shut), true
		}
		e.seen = since
		q.MoveToBack(front)
	}
	return closes, false
}

// Shed closes up to n connections without a request, and begins with the connections that have been
// without a request for longest. Call it when the process has run out of descriptors.
func (t *Table) Shed(n int) {
	if t == nil {
		return
	}
	var closes []func()
	t.mu.Lock()
	for ok := true; ok && len(closes) < n && t.all.Len() > 0; {
		closes, ok = t.makeRoom(&t.all, closes)
	}
	t.mu.Unlock()
	for _, shut := range closes {
		shut()
	}
}

// remove takes the entry out of the queues. The caller holds mu.
func (t *Table) remove(e *Entry) {
	if e.inAll == nil {
		return
	}
	t.all.Remove(e.inAll)
	mine := t.addresses[e.address]
	mine.Remove(e.inAddress)
	if mine.Len() == 0 {
		delete(t.addresses, e.address)
	}
	e.inAll, e.inAddress = nil, nil
	e.tally.open.Add(-1)
}

// Figures returns how many connections are open, and how many were refused, or shed to make room.
func (t *Table) Figures() (open, refused, shed int64) {
	if t == nil {
		return 0, 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(t.all.Len()), t.refused.Load(), t.shed.Load()
}

// Begin must be called when a request of the connection begins, that is, when its header has arrived.
func (e *Entry) Begin() {
	if e != nil {
		e.requests.Add(1)
	}
}

// End must be called when a request has ended.
func (e *Entry) End() {
	if e != nil {
		e.since.Store(time.Now().UnixNano())
		e.requests.Add(-1)
	}
}

// Idle returns the time since which the connection has no request. ok is false while it has a request.
func (e *Entry) Idle() (since time.Time, ok bool) {
	at := e.since.Load()
	return time.Unix(0, at), e.requests.Load() == 0
}

// Fault counts a fault of the connection: bytes that cost the process resources but are not a request, such as half of
// a header. If its address has too many faults, tooMany is true. Then the caller must close the connection, and Refuses
// returns true for the address for a time. Faults of a connection from an exempt address count only for that connection.
func (e *Entry) Fault() (tooMany bool) {
	if e == nil {
		return false
	}
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return e.table.holdback.chargeFault(e.faulty, time.Now())
}

// Refuses reports whether connections from remote are held back for faults, and counts the refusal.
func (t *Table) Refuses(remote net.Addr) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.holdback.isHeldBack(t.faultKey(remote), time.Now()) {
		return false
	}
	t.refused.Add(1)
	return true
}

// faultKey returns the key for which faults of a connection from remote count. It is the address of remote. If that
// address is exempt, the key also has the port, so that it stands for the connection.
func (t *Table) faultKey(remote net.Addr) netip.AddrPort {
	host, address := addressOf(remote)
	if !t.limits.isExempt(host) {
		return netip.AddrPortFrom(address, 0)
	}
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil { // a Unix socket of this host
		return netip.AddrPort{}
	}
	return at
}

// Shuts replaces the function that closes the connection.
func (e *Entry) Shuts(shut func()) {
	if e == nil {
		return
	}
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.shut = shut
}

// Done is called when the connection is closed. It may be called more than once.
func (e *Entry) Done() {
	if e == nil {
		return
	}
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.table.remove(e)
}

// addressOf returns the address of remote, and the address for which its connections count. For IPv6 the
// latter is the /64 network, because a host can use any number of its addresses. Both are zero for a Unix
// socket.
func addressOf(remote net.Addr) (host, counted netip.Addr) {
	if remote == nil {
		return host, counted
	}
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return host, counted
	}
	host = at.Addr().Unmap().WithZone("")
	if host.Is6() {
		if network, err := host.Prefix(64); err == nil {
			return host, network.Addr()
		}
	}
	return host, host
}

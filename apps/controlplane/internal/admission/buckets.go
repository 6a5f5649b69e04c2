package admission

import (
	"net/netip"
	"sync"
	"time"
)

// maxBuckets bounds the memory of Buckets to some megabytes.
const maxBuckets = 50_000

// Buckets holds one bucket for each key, such as an address, of one process. A full bucket is not stored.
// When there are too many buckets, the keys without one share one. Buckets is safe for concurrent use; the
// zero Rate limits nothing. Times are microseconds of any one clock.
type Buckets struct {
	rate Rate
	most int

	mu     sync.Mutex
	fullAt map[string]int64
}

// NewBuckets returns buckets of the rate.
func NewBuckets(rate Rate) *Buckets {
	return &Buckets{rate: rate, most: maxBuckets, fullAt: map[string]int64{}}
}

// Take takes a token of the key's bucket, or returns how long to wait for one.
func (b *Buckets) Take(key string, now int64) (wait time.Duration) {
	if !b.rate.Limited() {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key = b.place(key, now)
	after, wait := b.rate.Take(b.fullAt[key], now)
	b.fullAt[key] = after
	return wait
}

// Return puts back a token that was not needed.
func (b *Buckets) Return(key string, now int64) {
	if !b.rate.Limited() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.fullAt[key]; !ok {
		key = ""
	}
	if b.fullAt[key] -= b.rate.Interval; b.fullAt[key] <= now {
		delete(b.fullAt, key)
	}
}

// Rate returns the rate of each bucket.
func (b *Buckets) Rate() Rate { return b.rate }

// place returns the key of the key's bucket, or "" for the bucket that keys share.
func (b *Buckets) place(key string, now int64) string {
	if _, ok := b.fullAt[key]; ok || len(b.fullAt) < b.most {
		return key
	}
	for k, at := range b.fullAt {
		if at <= now {
			delete(b.fullAt, k)
		}
	}
	if len(b.fullAt) < b.most {
		return key
	}
	return ""
}

// ClientKey returns the same key for all addresses that one caller can choose from: an IPv4 address, or the
// /64 of an IPv6 address.
func ClientKey(client netip.Addr) string {
	client = client.Unmap()
	if !client.Is6() {
		return client.String()
	}
	network, err := client.WithZone("").Prefix(64)
	if err != nil {
		return client.String()
	}
	return network.String()
}

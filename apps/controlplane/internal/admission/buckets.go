package admission

import (
	"net/netip"
	"sync"
	"time"
)

// maxBuckets is the maximum number of stored buckets. It bounds the memory of Buckets to a few megabytes.
const maxBuckets = 50_000

// Buckets holds one bucket for each key, such as an address. Other processes do not share these buckets. A full
// bucket is not stored. If there are too many buckets, keys without a bucket share one. Buckets is safe for concurrent
// use. With the zero Rate there is no limit. Times are microseconds of one clock, which the caller chooses.
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

// Take takes a token of the key's bucket, or returns the time until the next token.
func (b *Buckets) Take(key string, now int64) (wait time.Duration) {
	if !b.rate.Limited() {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key = b.bucketOf(key, now)
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

// bucketOf returns key if it has or may have its own bucket, or "" for the shared bucket.
func (b *Buckets) bucketOf(key string, now int64) string {
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

// ClientKey returns the IPv4 address, or the /64 of an IPv6 address, because one caller can use all addresses of a
// /64.
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

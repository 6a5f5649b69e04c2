// Package histogram counts durations in the buckets that gateways and agents share.
package histogram

import (
	"slices"
	"time"
)

// bounds are the inclusive upper ends of the buckets, five for each power of ten, from 1 ms to 1,000 s. A
// bucket's upper end is 1.58 times its lower end. So from 1 ms to 1,000 s, a quantile is at most 58 % too
// large or 37 % too small.
var bounds = [...]time.Duration{
	1000 * time.Microsecond, 1585 * time.Microsecond, 2512 * time.Microsecond, 3981 * time.Microsecond, 6310 * time.Microsecond,
	10 * time.Millisecond, 15849 * time.Microsecond, 25119 * time.Microsecond, 39811 * time.Microsecond, 63096 * time.Microsecond,
	100 * time.Millisecond, 158489 * time.Microsecond, 251189 * time.Microsecond, 398107 * time.Microsecond, 630957 * time.Microsecond,
	time.Second, 1584893 * time.Microsecond, 2511886 * time.Microsecond, 3981072 * time.Microsecond, 6309573 * time.Microsecond,
	10 * time.Second, 15848932 * time.Microsecond, 25118864 * time.Microsecond, 39810717 * time.Microsecond, 63095734 * time.Microsecond,
	100 * time.Second, 158489319 * time.Microsecond, 251188643 * time.Microsecond, 398107171 * time.Microsecond, 630957344 * time.Microsecond,
	1000 * time.Second,
}

// Buckets is the number of buckets. The last bucket counts durations above all bounds.
const Buckets = len(bounds) + 1

// Counts has the number of durations in each bucket.
type Counts [Buckets]uint64

// Bucket returns the bucket in which a duration is counted, from 0 to Buckets-1.
func Bucket(d time.Duration) int {
	i, _ := slices.BinarySearch(bounds[:], d)
	return i
}

// Add adds the counts of more.
func (c *Counts) Add(more *Counts) {
	for i, n := range more {
		c[i] += n
	}
}

// Total returns the number of counted durations.
func (c *Counts) Total() (sum uint64) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// Quantile returns the duration that a share q (0 to 1) of the durations does not exceed. It assumes that
// durations are spread evenly in their bucket. For durations above all bounds it returns the last bound. ok is
// false if there are no durations.
func (c *Counts) Quantile(q float64) (d time.Duration, ok bool) {
	total := c.Total()
	if total == 0 {
		return 0, false
	}
	rank := q * float64(total)
	below := 0.0
	for i, n := range c {
		if i == len(bounds) {
			break
		}
		if n > 0 && below+float64(n) >= rank {
			low := time.Duration(0)
			if i > 0 {
				low = bounds[i-1]
			}
			return low + time.Duration(float64(bounds[i]-low)*max(rank-below, 0)/float64(n)), true
		}
		below += float64(n)
	}
	return bounds[len(bounds)-1], true
}

// Pack returns the counts without the zeros at their end.
func (c *Counts) Pack() []uint64 {
	end := Buckets
	for end > 0 && c[end-1] == 0 {
		end--
	}
	return slices.Clone(c[:end])
}

// Unpack returns the counts that Pack packed. If packed has more than Buckets elements, the last bucket gets the rest.
func Unpack(packed []uint64) (c Counts) {
	for i, n := range packed {
		c[min(i, Buckets-1)] += n
	}
	return c
}

// Package histogram counts durations in the buckets that gateways and agents share.
package histogram

import (
	"slices"
	"time"
)

// bounds are the upper ends of the buckets, inclusive: five to each power of ten, from
// 1 ms to 1,000 s. What a quantile is told as is off by a quarter at most.
var bounds = [...]time.Duration{
	1000 * time.Microsecond, 1585 * time.Microsecond, 2512 * time.Microsecond, 3981 * time.Microsecond, 6310 * time.Microsecond,
	10 * time.Millisecond, 15849 * time.Microsecond, 25119 * time.Microsecond, 39811 * time.Microsecond, 63096 * time.Microsecond,
	100 * time.Millisecond, 158489 * time.Microsecond, 251189 * time.Microsecond, 398107 * time.Microsecond, 630957 * time.Microsecond,
	time.Second, 1584893 * time.Microsecond, 2511886 * time.Microsecond, 3981072 * time.Microsecond, 6309573 * time.Microsecond,
	10 * time.Second, 15848932 * time.Microsecond, 25118864 * time.Microsecond, 39810717 * time.Microsecond, 63095734 * time.Microsecond,
	100 * time.Second, 158489319 * time.Microsecond, 251188643 * time.Microsecond, 398107171 * time.Microsecond, 630957344 * time.Microsecond,
	1000 * time.Second,
}

// Buckets is how many there are; the last one is of what is above all bounds.
const Buckets = len(bounds) + 1

// Counts of durations by bucket.
type Counts [Buckets]uint64

// Bucket that a duration is counted in, 0 to Buckets-1.
func Bucket(d time.Duration) int {
	i, _ := slices.BinarySearch(bounds[:], d)
	return i
}

// Add what others have counted.
func (c *Counts) Add(more *Counts) {
	for i, n := range more {
		c[i] += n
	}
}

// Total is how many were counted.
func (c *Counts) Total() (sum uint64) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// Quantile that q (0 to 1) of the durations are at or below, as if those of a bucket were
// spread evenly in it; ok is false when there are none. What is above all bounds is told as
// the last of them.
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

// Pack is the counts without the zeros at their end.
func (c *Counts) Pack() []uint64 {
	end := Buckets
	for end > 0 && c[end-1] == 0 {
		end--
	}
	return slices.Clone(c[:end])
}

// Unpack takes what Pack made. Of more buckets than there are, the rest counts in the last.
func Unpack(packed []uint64) (c Counts) {
	for i, n := range packed {
		c[min(i, Buckets-1)] += n
	}
	return c
}

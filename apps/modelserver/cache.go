package modelserver

import "sync/atomic"

// cache counts the tokens of running requests in the KV cache.
type cache struct {
	size int
	held atomic.Int64
}

func (c *cache) addTokens(tokens int) { c.held.Add(int64(tokens)) }

// usedShare returns the share of the cache in use: 1 is all of it.
func (c *cache) usedShare() float64 { return min(1, float64(c.held.Load())/float64(c.size)) }

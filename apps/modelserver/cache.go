package modelserver

import "sync/atomic"

// cache counts the tokens of running requests in the KV cache.
type cache struct {
	size int
	held atomic.Int64
}

func (c *cache) addTokens(tokens int) { c.held.Add(int64(tokens)) }

// usedShare returns the used share of the cache, from 0 to 1.
func (c *cache) usedShare() float64 { return min(1, float64(c.held.Load())/float64(c.size)) }

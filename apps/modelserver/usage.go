package modelserver

// kvTokenBytes is the memory of one cached token: 32 layers with 8 heads of 128 numbers, each with a key and a value of
// 2 bytes, as in Llama 3.1 8B.
const kvTokenBytes = 32 * 8 * 128 * 2 * 2

// Usage is the simulated usage of a server. It is computed from the server's requests, models and tokens, because the
// servers of one process cannot be measured separately.
type Usage struct {
	// Cores is one core for each request that holds a slot.
	Cores float64
	// MemoryBytes is the memory of the models that were loaded on request, and of the cached tokens.
	MemoryBytes int64
}

// Usage returns the server's usage at this moment. It is safe for concurrent use.
func (s *Server) Usage() Usage {
	running, _ := s.queue.countRequests()
	return Usage{Cores: float64(running), MemoryBytes: int64(s.models.budget.usedMiB())<<20 + s.cache.held.Load()*kvTokenBytes}
}

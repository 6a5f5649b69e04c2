package modelserver

import (
	"context"
	"strings"
	"time"
)

// These are the reasons why generation ended, in OpenAI's words. Abort is vLLM's word, and only metrics use it.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishAbort  = "abort"
)

// plan is the whole answer to one request, which the echo model knows before the first token.
type plan struct {
	promptTokens int
	prompt       []string // the tokens of the prompt, for KV transfers
	tokens       []string // tokens of the answer; joined, they are its text
	limit        int      // maximum number of tokens of the answer
	finish       string
}

// planEcho plans an answer that repeats the words of echo, with at most limit tokens. With ignoreEOS, the answer repeats
// them up to the limit, because benchmarks need answers of an exact length. The text ends before the first stop
// sequence.
func planEcho(promptTokens int, echo string, limit int, ignoreEOS bool, stop []string) plan {
	words := strings.Fields(echo)
	p := plan{promptTokens: promptTokens, finish: finishStop, limit: limit}
	n := len(words)
	if n > limit || ignoreEOS && n > 0 {
		n, p.finish = limit, finishLength
	}
	p.tokens = make([]string, n)
	for i := range n {
		p.tokens[i] = words[i%len(words)]
		if i > 0 {
			p.tokens[i] = " " + p.tokens[i]
		}
	}
	text := strings.Join(p.tokens, "")
	cut := len(text)
	for _, s := range stop {
		if i := strings.Index(text, s); i >= 0 {
			cut = min(cut, i)
		}
	}
	if cut == len(text) {
		return p
	}
	p.finish = finishStop
	for i, t := range p.tokens {
		if cut <= len(t) {
			p.tokens = p.tokens[:i+1]
			p.tokens[i] = t[:cut]
			if cut == 0 {
				p.tokens = p.tokens[:i]
			}
			break
		}
		cut -= len(t)
	}
	return p
}

// pace has the delay of the first token, and of each later token.
type pace struct {
	first time.Duration
	each  time.Duration
}

func newPace(first time.Duration, rate, slow float64) pace {
	p := pace{first: scaleDuration(first, slow)}
	if rate > 0 {
		p.each = scaleDuration(time.Duration(float64(time.Second)/rate), slow)
	}
	return p
}

// scaleDuration multiplies d by factor. It returns at most a year, so that it cannot overflow. A request's
// deadline ends the wait long before that.
func scaleDuration(d time.Duration, factor float64) time.Duration {
	const longest = 365 * 24 * time.Hour
	if f := float64(d) * factor; f < float64(longest) {
		return time.Duration(f)
	}
	return longest
}

// emitTokens calls emit for every token at its time. Times count from the start, not from the previous token, so that
// a slow reader does not lower the rate of later tokens.
func (p pace) emitTokens(ctx context.Context, tokens []string, emit func(i int, token string) error) error {
	due := time.Now().Add(p.first)
	for i, token := range tokens {
		if err := sleepUntil(ctx, due); err != nil {
			return err
		}
		if err := emit(i, token); err != nil {
			return err
		}
		due = due.Add(p.each)
	}
	return nil
}

func sleepUntil(ctx context.Context, due time.Time) error {
	wait := time.Until(due)
	if wait <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package backoff_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
)

func ExampleRetry() {
	attempts := 0
	err := backoff.Retry(context.Background(), backoff.Policy{Min: time.Millisecond, Max: time.Second}, func(context.Context) error {
		if attempts++; attempts < 3 {
			return errors.New("connection refused")
		}
		return nil
	})
	fmt.Println(attempts, err)
	// Output: 3 <nil>
}

func ExamplePermanent() {
	attempts := 0
	err := backoff.Retry(context.Background(), backoff.Policy{}, func(context.Context) error {
		attempts++
		return backoff.Permanent(errors.New("the key is not valid"))
	})
	fmt.Println(attempts, err)
	// Output: 1 the key is not valid
}

func ExamplePolicy_Delay() {
	middle := func() float64 { return 0.5 }
	p := backoff.Policy{Min: time.Second, Max: 30 * time.Second}
	for attempt := range 4 {
		fmt.Println(p.Delay(attempt, middle))
	}
	// Output:
	// 1.5s
	// 2.5s
	// 4.5s
	// 8.5s
}

func ExampleRest() {
	// A rest of 18 seconds follows work of two seconds. So the work uses a tenth of the time.
	fmt.Println(backoff.Rest(2*time.Second, 9, time.Second, time.Minute))
	// Output: 18s
}

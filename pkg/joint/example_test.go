package joint_test

import (
	"context"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/pkg/joint"
)

func ExampleContext() {
	first, firstLeaves := context.WithCancel(context.Background())
	second, secondLeaves := context.WithCancel(context.Background())
	work, cancel := joint.Context(time.Minute, first, second)
	defer cancel()

	firstLeaves()
	fmt.Println(work.Err()) // the second still waits for the work
	secondLeaves()
	<-work.Done()
	fmt.Println(work.Err())
	// Output:
	// <nil>
	// context canceled
}

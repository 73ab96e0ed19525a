// Goroutines on split stacks, deep enough to need many pieces.
package main

import "fmt"

func deep(n int, a int) int {
	var room [100]int
	room[n%100] = a
	if n == 0 {
		return a
	}
	if n%3 == 0 {
		return deep(n-1, a*3+1) + room[n%100]
	}
	return deep(n-1, a^n) - room[(n+1)%100]
}

func main() {
	c := make(chan int)
	for k := 0; k < 4; k++ {
		go func(k int) {
			s := 0
			for i := 0; i < 300; i++ {
				s += deep(i*3, s)
			}
			c <- s
		}(k)
	}
	t := 0
	for k := 0; k < 4; k++ {
		t += <-c
	}
	fmt.Println("sum", t)
}

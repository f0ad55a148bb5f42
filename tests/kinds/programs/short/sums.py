print(sum(number * number for number in range(1_000_000)))

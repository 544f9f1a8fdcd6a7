"""What a source holds, as columns and counts: the ground of ``refshard info``, of comparisons and of pictures."""
